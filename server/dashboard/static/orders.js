// Orders of an operator: asked for with a token each time, which the page forgets at once.

const find = (id) => document.getElementById(id);

const KINDS = {
  rollback: {
    title: "Roll back",
    path: "/rollback",
    text: "Go back to an earlier position and stay there. What is undone is not taken again before a resume.",
    position: "required",
  },
  pin: {
    title: "Pin",
    path: "/pin",
    text: "Stay at a position, or, without one, at what is served now, until a resume.",
    position: "optional",
  },
  resume: { title: "Resume", path: "/resume", text: "Follow the trainer again, also over what was rolled back." },
  release: {
    title: "Release",
    path: "/quarantine/release",
    text: "Take this quarantined state whatever its values are.",
    position: "given",
  },
};

export class Orders {
  constructor() {
    this.kind = null;
    this.base = "/model";
    this.title = "";
    find("order-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    find("order-cancel").addEventListener("click", () => find("order").close());
    find("order").addEventListener("close", () => {
      find("order-token").value = "";
    });
  }

  // `position`: what stands in the field at first. The model stays the one that was looked at when it was asked for.
  ask(name, model, position = "") {
    this.kind = KINDS[name];
    this.base = model.orders;
    this.title = model.name ? `${this.kind.title} ${model.name}` : this.kind.title;
    find("order-title").textContent = this.title;
    find("order-text").textContent = this.kind.text;
    find("order-confirm").textContent = this.kind.title;
    find("order-error").textContent = "";
    find("order-position-label").hidden = !this.kind.position;
    find("order-position").value = position;
    find("order-position").required = this.kind.position === "required";
    find("order-position").readOnly = this.kind.position === "given";
    find("order").showModal();
  }

  async send() {
    const position = find("order-position").value.trim();
    const order = this.kind.position && position ? { position } : {};
    find("order-confirm").disabled = true;
    find("order-error").textContent = "";
    try {
      const headers = { Authorization: `Bearer ${find("order-token").value}` };
      const answer = await fetch(this.base + this.kind.path, { method: "POST", headers, body: JSON.stringify(order) });
      const said = await answer.json();
      if (!answer.ok) throw new Error(said.error);
      find("outcome").textContent = `${this.title}: done, ${said.position ?? "nothing"} is served`;
      find("order").close();
    } catch (error) {
      find("order-error").textContent = error.message;
    } finally {
      find("order-confirm").disabled = false;
    }
  }
}
