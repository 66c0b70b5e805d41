// Unit tests of the live stream in the page: node --test tests/finegrain_cli/web
import assert from "node:assert/strict";
import test from "node:test";
import { LiveStream } from "../../../finegrain_cli/web/page/live.js";

const host = (executor_id, more = {}) => ({ executor_id, used: 0, ...more });
const message = (event, id, data) => `${id ? `id: ${id}\n` : ""}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`;
const SNAPSHOT = [
  "retry: 1000\n\n",
  message("snapshot", "", { first: true, more: true, cluster: { slots: 1 }, executors: [host("a")] }),
  message("snapshot", "1.4", { first: false, more: false, cluster: { slots: 1 }, executors: [host("b")] }),
].join("");

/** Serves texts, one for each connection. A connection stays open after its last text. */
function serve(...connections) {
  const asked = [];
  globalThis.fetch = async (path, { headers, signal }) => {
    asked.push(headers);
    const texts = connections.shift() ?? [];
    const body = new ReadableStream({
      async start(controller) {
        for (const text of texts) controller.enqueue(new TextEncoder().encode(text));
        if (connections.length) controller.close();
        else signal.addEventListener("abort", () => controller.error(new Error("aborted")));
      },
    });
    return new Response(body, { status: 200 });
  };
  return asked;
}

/** Collects messages until one passes a check. */
function collect(stream, token, check) {
  const seen = [];
  return new Promise((resolve) => {
    const reader = (each) => {
      seen.push(each);
      if (check(each)) resolve({ seen, reader });
    };
    stream.add(token, reader);
  });
}

test("a snapshot in parts and a change arrive, however the text is cut", async () => {
  const text = SNAPSHOT + message("delta", "1.5", { cluster: null, executors: [], used: { a: 7 }, gone: ["b"] });
  for (const size of [1, 7, 50, 10_000]) {
    const cut = Array.from({ length: Math.ceil(text.length / size) }, (_, at) => text.slice(at * size, (at + 1) * size));
    serve(cut);
    const stream = new LiveStream();
    const { seen, reader } = await collect(stream, "t", (each) => each.kind === "delta");
    const kinds = seen.filter((each) => each.kind !== "alive").map((each) => each.kind);
    assert.deepEqual(kinds, ["snapshot", "snapshot", "delta"]);
    stream.remove(reader);
  }
});

test("a second tab gets what is known, and there is one connection", async () => {
  const asked = serve([SNAPSHOT, message("delta", "1.5", { cluster: null, executors: [], used: { a: 7 }, gone: ["b"] })]);
  const stream = new LiveStream();
  const first = await collect(stream, "t", (each) => each.kind === "delta");
  const second = await collect(stream, "t", (each) => each.kind === "snapshot");
  assert.deepEqual(second.seen, [
    { kind: "snapshot", first: true, more: false, cluster: { slots: 1 }, executors: [host("a", { used: 7 })] },
  ]);
  assert.equal(asked.length, 1);
  stream.remove(first.reader);
  stream.remove(second.reader);
});

test("after a lost connection, the stream continues after the last message", async () => {
  const asked = serve([SNAPSHOT], [message("delta", "1.5", { cluster: { slots: 2 }, executors: [], used: {}, gone: [] })]);
  const stream = new LiveStream();
  const { seen, reader } = await collect(stream, "t", (each) => each.kind === "delta");
  assert.ok(seen.some((each) => each.kind === "lost"));
  assert.equal(asked[0]["last-event-id"], undefined);
  assert.equal(asked[1]["last-event-id"], "1.4");
  stream.remove(reader);
});

test("another session gets nothing of the first one", async () => {
  serve([SNAPSHOT], [SNAPSHOT]);
  const stream = new LiveStream();
  const first = await collect(stream, "t", (each) => each.kind === "snapshot" && !each.more);
  stream.remove(first.reader);
  const second = await collect(stream, "u", (each) => each.kind === "snapshot");
  assert.equal(second.seen.find((each) => each.kind === "snapshot").more, true);
  stream.remove(second.reader);
});
