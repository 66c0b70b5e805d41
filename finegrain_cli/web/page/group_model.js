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

/** Returns the typed settings of a group that differ from its present settings, or null if no setting differs or a value is wrong. */
export function groupChange(group, { weight, cpus }) {
  const found = {};
  const wanted = Number(weight);
  if (!(wanted > 0)) return null;
  if (wanted !== group.weight) found.weight = wanted;
  const before = group.maximum.cpu_milli ?? -1;
  const most = cpus.trim() ? Math.round(1000 * Number(cpus)) : -1;
  if (Number.isNaN(most)) return null;
  if (most !== before) found.maximum = { cpu_milli: most };
  return Object.keys(found).length ? found : null;
}
