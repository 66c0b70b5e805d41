// Computes the places of the boxes and edges of a directed graph: layers from sources to sinks.
//
// The method is that of Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical
// System Structures" (IEEE Transactions on Systems, Man, and Cybernetics, 1981): layers by longest
// paths, a dummy node in each layer that an edge crosses, and an order in each layer by barycenters.

const SWEEPS = 8;

/** Returns the edges without those that close a circle, so that every box gets a layer. */
function acyclic(names, edges) {
  const out = grouped(edges, "from");
  const state = new Map(); // absent: not visited, 1: on the current path, 2: done
  const closing = new Set();
  for (const root of names) {
    if (state.has(root)) continue;
    state.set(root, 1);
    const path = [{ name: root, next: 0 }];
    while (path.length) {
      const top = path.at(-1);
      const edge = (out.get(top.name) ?? [])[top.next];
      top.next += 1;
      if (!edge) {
        state.set(top.name, 2);
        path.pop();
      } else if (state.get(edge.to) === 1) closing.add(edge);
      else if (!state.has(edge.to)) {
        state.set(edge.to, 1);
        path.push({ name: edge.to, next: 0 });
      }
    }
  }
  return edges.filter((edge) => !closing.has(edge));
}

/** Returns the layer of each box: the number of edges on the longest path from a source to it. */
export function layersOf(names, edges) {
  const forward = acyclic(names, edges);
  const out = grouped(forward, "from");
  const missing = new Map(names.map((name) => [name, 0]));
  for (const edge of forward) missing.set(edge.to, missing.get(edge.to) + 1);
  const layer = new Map(names.map((name) => [name, 0]));
  const ready = names.filter((name) => missing.get(name) === 0);
  for (let at = 0; at < ready.length; at += 1) {
    for (const { to } of out.get(ready[at]) ?? []) {
      layer.set(to, Math.max(layer.get(to), layer.get(ready[at]) + 1));
      missing.set(to, missing.get(to) - 1);
      if (missing.get(to) === 0) ready.push(to);
    }
  }
  return layer;
}

/** Returns the number of crossings between the edges of two neighboring layers. `pairs` are positions in both layers. */
export function crossings(pairs) {
  let found = 0;
  const sorted = [...pairs].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  for (let right = 1; right < sorted.length; right += 1) {
    for (let left = 0; left < right; left += 1) {
      if (sorted[left][0] < sorted[right][0] && sorted[left][1] > sorted[right][1]) found += 1;
    }
  }
  return found;
}

/**
 * Returns the places of a graph.
 *
 * `names` are the boxes, `edges` have `from` and `to`. The answer has `boxes` (for each name, `x` and `y`
 * of its left upper corner), `lines` (for each edge, its points), and the size of the drawing. `size` has
 * width and height of a box, and the gaps between layers (`across`) and between boxes (`between`).
 */
export function layout(names, edges, size) {
  const known = new Set(names);
  const kept = edges.filter(({ from, to }) => from !== to && known.has(from) && known.has(to));
  const layer = layersOf(names, kept);
  const rows = [];
  const put = (node, at) => (rows[at] ??= []).push(node);
  for (const name of names) put(name, layer.get(name));
  // The nodes of an edge, from the lower layer to the higher layer: its boxes, and dummy nodes between them.
  const chains = kept.map((edge, number) => {
    const [low, high] = layer.get(edge.from) <= layer.get(edge.to) ? [edge.from, edge.to] : [edge.to, edge.from];
    const nodes = [low];
    for (let at = layer.get(low) + 1; at < layer.get(high); at += 1) {
      const dummy = { edge: number, at };
      put(dummy, at);
      nodes.push(dummy);
    }
    return [...nodes, high];
  });
  const steps = chains.flatMap((nodes) => nodes.slice(1).map((node, at) => ({ from: nodes[at], to: node })));
  const order = ordered(rows, steps, layer);
  return placed(order, kept, chains, size, layer);
}

const layerIn = (layer, node) => (typeof node === "string" ? layer.get(node) : node.at);

/** Orders the nodes of each layer by the barycenter of their neighbors. Keeps the order with the fewest crossings. */
function ordered(rows, steps, layer) {
  const before = grouped(steps, "to");
  const after = grouped(steps, "from");
  let order = rows;
  let best = rows;
  let least = Infinity;
  for (let sweep = 0; sweep <= SWEEPS; sweep += 1) {
    const places = new Map(order.flatMap((row) => row.map((node, at) => [node, at])));
    const found = allCrossings(order, steps, layer, places);
    if (found < least) [best, least] = [order, found];
    if (least === 0) break;
    const isDown = sweep % 2 === 0;
    const next = [...order];
    for (let step = 1; step < order.length; step += 1) {
      const at = isDown ? step : order.length - 1 - step;
      const neighbors = (node) => ((isDown ? before : after).get(node) ?? []).map((edge) => places.get(isDown ? edge.from : edge.to));
      const center = (node) => {
        const all = neighbors(node);
        return all.length ? all.reduce((sum, each) => sum + each, 0) / all.length : places.get(node);
      };
      const weighed = order[at].map((node, old) => ({ node, old, weight: center(node) }));
      next[at] = weighed.sort((a, b) => a.weight - b.weight || a.old - b.old).map((each) => each.node);
      next[at].forEach((node, place) => places.set(node, place));
    }
    order = next;
  }
  return best;
}

function allCrossings(order, steps, layer, places) {
  const pairs = order.map(() => []);
  for (const { from, to } of steps) {
    if (layerIn(layer, from) === layerIn(layer, to)) continue; // part of a circle
    pairs[layerIn(layer, from)].push([places.get(from), places.get(to)]);
  }
  return pairs.reduce((sum, each) => sum + crossings(each), 0);
}

/** Turns layers into columns. Each column is centered. A dummy node is a thin row without a box. */
function placed(order, edges, chains, { width, height, across, between }, layer) {
  const tall = (node) => (typeof node === "string" ? height : between);
  const heights = order.map((row) => row.reduce((sum, node) => sum + tall(node) + between, -between));
  const whole = Math.max(0, ...heights);
  const boxes = new Map();
  const middle = new Map();
  order.forEach((row, column) => {
    const x = column * (width + across);
    let y = (whole - heights[column]) / 2;
    for (const node of row) {
      if (typeof node === "string") boxes.set(node, { x, y });
      middle.set(node, { x, y: y + tall(node) / 2 });
      y += tall(node) + between;
    }
  });
  const lines = edges.map(({ from, to }, number) => {
    const nodes = chains[number];
    const points = nodes.flatMap((node, at) => {
      const { x, y } = middle.get(node);
      if (at === 0) return [{ x: x + width, y }];
      return at === nodes.length - 1 ? [{ x, y }] : [{ x, y }, { x: x + width, y }];
    });
    return { from, to, points: layer.get(from) <= layer.get(to) ? points : points.reverse() };
  });
  return { boxes, lines, width: Math.max(0, order.length * (width + across) - across), height: whole };
}

function grouped(items, name) {
  const found = new Map();
  for (const each of items) {
    if (!found.has(each[name])) found.set(each[name], []);
    found.get(each[name]).push(each);
  }
  return found;
}
