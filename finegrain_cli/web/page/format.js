// Returns amounts and times as text, in the units of the command line.

const UNITS = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

/** Returns thousandths of a core as a number of cpus: 1500 is "1.5". Large amounts are rounded to whole cpus. */
export function cpu(milli) {
  if (milli >= 100_000) return String(Math.round(milli / 1000));
  return String(Math.round(milli) / 1000);
}

/** Returns bytes with a binary unit: 1610612736 is "1.5Gi". */
export function bytes(count) {
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? Number(value.toFixed(1)) : Math.round(value)}${UNITS[unit]}`;
}

/** Returns an amount of a dimension, such as "1.5" for cpus or "2Gi" for memory. */
export function amount(name, value) {
  if (name.endsWith("cpu_milli")) return cpu(value);
  return name.endsWith("_bytes") || name.endsWith("memory") ? bytes(value) : String(value);
}

/** Returns the name of a dimension for people: "cpu" for "cpu_milli". */
export function dimension(name) {
  return name
    .replace(/_milli$/, "")
    .replace(/_bytes$/, "")
    .replace(/^extended\./, "")
    .replace(/^device\./, "")
    .replaceAll("_", " ");
}

/** Returns amounts as one line: "cpu 2, memory 4Gi". Amounts of countable resources and devices can be nested. */
export function amounts(map) {
  return texts(map).join(", ") || "nothing";
}

const texts = (map) => Object.entries(map).flatMap(([name, value]) => {
  if (typeof value === "number") return [`${dimension(name)} ${amount(name, value)}`];
  return name === "extended" || name === "devices" ? texts(value) : [];
});

/** Returns the memory in amounts: the sum of all memory parts. */
export function memory(map) {
  return Object.entries(map).reduce(
    (sum, [name, value]) => (/^(memory_bytes|(task|managed|network).*_bytes)$/.test(name) ? sum + value : sum),
    0,
  );
}

/** Returns the time since a moment: "3 min". */
export function age(moment, now = Date.now()) {
  if (!moment) return "–";
  const seconds = Math.max(0, (now - Date.parse(moment)) / 1000);
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** Returns a part of a whole in percent, 0 to 100. */
export function percent(part, whole) {
  return whole > 0 ? Math.min(100, Math.max(0, (100 * part) / whole)) : 0;
}

/** Returns a number with its noun: "1 slot", "2 slots". */
export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** The short form of an id: its last eight characters. */
export function short(id) {
  return id.length > 12 ? id.slice(-8) : id;
}

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** Replaces characters that are invisible, or that reorder a text, by visible characters: ESC becomes "\u241b". */
export function visible(text) {
  return text.replace(HIDDEN, (found) => {
    const code = found.charCodeAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : code === 127 ? "\u2421" : "\ufffd";
  });
}
