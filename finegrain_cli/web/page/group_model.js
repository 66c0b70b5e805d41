// Converts groups to plain data: the lines of their charts, and changes of their settings.

const FAR = 3; // a limit that is higher than this multiple of all other values is not drawn

/**
 * Returns the lines of the use of a group in one dimension, each as [name, values, isGuide].
 *
 * `used` and `allocated` are the names of the fields of samples. The guide line of the share is the part of the cluster's
 * total to which the group was entitled. `minimum` and `maximum` are constant; null: there is none.
 */
export function useLines(samples, { used, allocated, total, minimum = null, maximum = null }) {
  const of = (name) => samples.map((each) => each[name]);
  const lines = [["used", of(used)], ["allocated", of(allocated)]];
  if (total) lines.push(["share by weight", samples.map((each) => Math.round(each.share_entitled * total)), true]);
  const highest = Math.max(0, ...lines.flatMap(([, values]) => values));
  for (const [name, value] of [["minimum (reserved)", minimum], ["maximum", maximum]]) {
    if (value !== null && value <= FAR * highest) lines.push([name, samples.map(() => value), true]);
  }
  return lines;
}

/** The limits that the page can change: [dimension, words, size of a unit]. */
export const LIMITS = [["cpu_milli", "cpus", 1000], ["memory_bytes", "memory in GiB", 2 ** 30], ["slots", "slots", 1]];

/** Returns the settings of a group as texts, in the units of `LIMITS`. An empty text means that there is no limit. */
export function typedSettings(group) {
  const texts = (limits) => Object.fromEntries(LIMITS.map(([name, , unit]) => [name, name in limits ? String(limits[name] / unit) : ""]));
  return { weight: String(group.weight), minimum: texts(group.minimum), maximum: texts(group.maximum) };
}

/** Returns the typed settings of a group that differ from its present settings, or null if no setting differs or a value is wrong. */
export function groupChange(group, typed) {
  const before = typedSettings(group);
  const found = {};
  const weight = Number(typed.weight);
  if (!(weight > 0)) return null;
  if (typed.weight !== before.weight && weight !== group.weight) found.weight = weight;
  for (const kind of ["minimum", "maximum"]) {
    for (const [name, , unit] of LIMITS) {
      const text = typed[kind][name].trim();
      if (text === before[kind][name]) continue;
      const amount = text ? Math.round(unit * Number(text)) : -1; // -1 removes a limit
      if (Number.isNaN(amount) || (text && amount < 0)) return null;
      if (amount !== (group[kind][name] ?? -1)) (found[kind] ??= {})[name] = amount;
    }
  }
  return Object.keys(found).length ? found : null;
}
