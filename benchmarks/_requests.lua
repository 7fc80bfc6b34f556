-- What wrk sends: the requests of a file, each as it goes over the wire behind its size, one after the other and then
-- from the first again. When it is done it prints what it measured as a line of JSON.

local requests, number = {}, 0

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  for size in file:lines() do
    requests[#requests + 1] = file:read(tonumber(size))
  end
  file:close()
end

function request()
  number = number % #requests + 1
  return requests[number]
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    '{"answers": %d, "seconds": %.6f, "p50_ms": %.3f, "p99_ms": %.3f, "worst_ms": %.3f, "failures": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    latency.max / 1e3, errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
