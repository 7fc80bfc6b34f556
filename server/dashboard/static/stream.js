// The server's events, read with fetch: an EventSource could send no token.

const AGAIN_MS = 2000;

// Calls hear.document with each, hear.state with "live", "lost" or "refused", until the page goes.
export class Stream {
  constructor(hear) {
    this.hear = hear;
    this.token = "";
  }

  async run() {
    for (;;) {
      const answer = await this.read();
      if (answer === "refused") {
        this.hear.state("refused");
        return;
      }
      this.hear.state("lost");
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }

  async read() {
    try {
      const headers = this.token ? { Authorization: `Bearer ${this.token}` } : {};
      const answer = await fetch("/dashboard/events", { headers, cache: "no-store" });
      if (answer.status === 401) return "refused";
      if (!answer.ok) return "lost";
      await this.follow(answer.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch (error) {
      console.info("the stream ended", error);
    }
    return "lost";
  }

  async follow(reader) {
    let held = "";
    let isFirst = true;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (held + value).split("\n\n");
      held = parts.pop();
      for (const part of parts) {
        this.hear.state("live");
        this.hear.document(JSON.parse(part.slice("data: ".length)), isFirst);
        isFirst = false;
      }
    }
  }
}
