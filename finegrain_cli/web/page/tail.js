// Keeps the last part of an output.

export const KEPT = 131_072; // number of characters of output that the page keeps
const PIECE = 8192;

/** Keeps the last part of an output as pieces of [stream, text]. Counts the dropped characters. */
export class Tail {
  constructor(most = KEPT) {
    this.most = most;
    this.pieces = [];
    this.length = 0;
    this.dropped = 0;
  }

  add(name, text) {
    const last = this.pieces.at(-1);
    if (last?.[0] === name && last[1].length < PIECE) last[1] += text;
    else this.pieces.push([name, text]);
    this.length += text.length;
    while (this.length > this.most) {
      const [kind, first] = this.pieces[0];
      const cut = Math.min(this.length - this.most, first.length);
      if (cut === first.length) this.pieces.shift();
      else this.pieces[0] = [kind, first.slice(cut)];
      this.length -= cut;
      this.dropped += cut;
    }
  }
}
