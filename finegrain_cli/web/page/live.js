// The live stream of the resource manager: one connection, the state that the connection has sent, and
// readers. All tabs of a browser share the stream, in a worker. If a browser has no shared workers, each
// tab has a separate connection, and a hidden tab closes its connection.

const PAUSE_MS = 1000;
const PART = 250; // maximum number of hosts in one message, so that a page stays responsive

/** Follows the stream. Each reader is a function that gets the messages. */
export class LiveStream {
  #token = "";
  #last = "";
  #cluster = null;
  #hosts = new Map();
  #complete = false;
  #readers = new Set();
  #connection = null;

  /** Adds a reader, which first gets the known state. */
  add(token, reader) {
    if (token !== this.#token) this.#forget();
    this.#token = token;
    this.#readers.add(reader);
    if (this.#complete) {
      const known = [...this.#hosts.values()];
      for (let at = 0; at === 0 || at < known.length; at += PART) {
        const more = at + PART < known.length;
        reader({ kind: "snapshot", first: at === 0, more, cluster: this.#cluster, executors: known.slice(at, at + PART) });
      }
    }
    if (!this.#connection) this.#follow();
  }

  /** Removes a reader. If no reader is left, closes the connection. */
  remove(reader) {
    this.#readers.delete(reader);
    if (this.#readers.size === 0) this.#close();
  }

  #close() {
    this.#connection?.abort();
    this.#connection = null;
  }

  #forget() {
    this.#close();
    this.#last = "";
    this.#complete = false;
    this.#hosts.clear();
  }

  #send(message) {
    for (const reader of this.#readers) reader(message);
  }

  async #follow() {
    const connection = new AbortController();
    this.#connection = connection;
    while (!connection.signal.aborted) {
      try {
        await this.#read(connection.signal);
        this.#send({ kind: "lost", status: 0, detail: "the stream of the resource manager has ended" });
      } catch (error) {
        if (connection.signal.aborted) return;
        this.#send({ kind: "lost", status: error.status ?? 0, detail: error.detail ?? "the resource manager does not answer" });
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }

  async #read(signal) {
    const headers = { accept: "text/event-stream", "x-finegrain-token": this.#token };
    if (this.#last && this.#complete) headers["last-event-id"] = this.#last;
    const response = await fetch("/v1/live", { headers, signal });
    if (!response.ok) {
      const { detail } = await response.json();
      throw Object.assign(new Error(detail), { status: response.status, detail });
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    // A message can arrive in many parts. Join the parts only once, when the message is complete.
    for (let parts = []; ; ) {
      const { value, done } = await reader.read();
      if (done) return;
      if (!value.includes("\n\n") && !(value.startsWith("\n") && parts.at(-1)?.endsWith("\n"))) {
        parts.push(value);
        continue;
      }
      const texts = [...parts, value].join("").split("\n\n");
      parts = [texts.pop()];
      for (const text of texts) this.#take(text);
    }
  }

  #take(text) {
    const data = /^data: (.*)$/m.exec(text);
    if (!data) {
      this.#send({ kind: "alive" });
      return;
    }
    const kind = /^event: (.*)$/m.exec(text)[1];
    const message = { kind, ...JSON.parse(data[1]) };
    if (kind === "snapshot" && message.first) {
      this.#complete = false;
      this.#hosts.clear();
    }
    this.#cluster = message.cluster ?? this.#cluster;
    for (const each of message.executors) this.#hosts.set(each.executor_id, each);
    for (const [id, used] of Object.entries(message.used ?? {})) this.#hosts.set(id, { ...this.#hosts.get(id), used });
    for (const id of message.gone ?? []) this.#hosts.delete(id);
    const id = /^id: (.*)$/m.exec(text);
    if (id) this.#last = id[1];
    if (kind === "snapshot" && !message.more) this.#complete = true;
    this.#send(message);
  }
}

/** Follows the stream for this page. `reader` is a function that gets the messages. */
export function followLive(token, reader) {
  if (typeof SharedWorker === "undefined") {
    const stream = new LiveStream();
    const shown = () => (document.hidden ? stream.remove(reader) : stream.add(token, reader));
    document.addEventListener("visibilitychange", shown);
    shown();
    return;
  }
  const { port } = new SharedWorker("/live_worker.js", { type: "module", name: "finegrain" });
  port.onmessage = ({ data }) => reader(data);
  port.postMessage({ token });
  addEventListener("pagehide", () => port.postMessage({ token: null }));
  addEventListener("pageshow", (event) => event.persisted && port.postMessage({ token }));
}
