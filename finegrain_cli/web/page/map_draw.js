// Draws maps on a canvas. Reserved, allocated and used parts differ in pattern, not only in color. Dots
// mark reserved parts, stripes mark allocated parts, and a solid fill marks used parts. Free parts are
// empty.

import { useEffect, useRef } from "./vendor/hooks.mjs";
import { html } from "./parts.js";
import { fullness, hue, severity } from "./map_model.js";
import { percent } from "./format.js";

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Returns the colors for a canvas: the present colors of the page. */
export function theme() {
  return dark.matches
    ? { ground: "#1e2329", line: "#4a545f", text: "#e8eaed", quiet: "#a2aab4", bad: "#ff8a80", plain: "#5b9bd9" }
    : { ground: "#f3f5f7", line: "#b4bcc5", text: "#1b1f24", quiet: "#57606a", bad: "#b3261e", plain: "#2563a8" };
}

/** The color of a name, such as a job or a group. */
export const colorOf = (name) => `hsl(${hue(name)} 55% ${dark.matches ? 62 : 42}%)`;

const NEAR = "300px"; // canvases this close to the visible part of the page are drawn

/**
 * A canvas that is as wide as the element around it. The canvas is drawn again when `draw` changes. If
 * it is not visible, it is drawn when it becomes visible.
 */
export function Canvas({ height, draw, label, onClick, onMove }) {
  const ref = useRef(null);
  const state = useRef({ width: 0, visible: false, late: false, paint: null }).current;
  Object.assign(state, { height, draw });
  useEffect(() => {
    const canvas = ref.current;
    state.paint = () => {
      const { width } = state;
      if (!width) return; // the size is not known yet
      const tall = typeof state.height === "function" ? state.height(width) : state.height;
      const ratio = devicePixelRatio || 1;
      canvas.style.height = `${tall}px`;
      state.late = !state.visible;
      if (state.late) return;
      canvas.width = Math.max(1, Math.round(width * ratio));
      canvas.height = Math.max(1, Math.round(tall * ratio));
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      context.clearRect(0, 0, width, tall);
      state.draw(context, width, tall);
    };
    const sizes = new ResizeObserver((entries) => {
      state.width = entries.at(-1).contentRect.width;
      state.paint();
    });
    const views = new IntersectionObserver((entries) => {
      state.visible = entries.at(-1).isIntersecting;
      if (state.visible && state.late) state.paint();
    }, { rootMargin: NEAR });
    sizes.observe(canvas);
    views.observe(canvas);
    dark.addEventListener("change", state.paint);
    return () => {
      sizes.disconnect();
      views.disconnect();
      dark.removeEventListener("change", state.paint);
    };
  }, []);
  useEffect(() => state.paint(), [draw, height]);
  const place = (handler) => handler && ((event) => handler(event.offsetX, event.offsetY, event.currentTarget));
  return html`<canvas ref=${ref} class="map" role="img" aria-label=${label} onClick=${place(onClick)} onMouseMove=${place(onMove)} />`;
}

function stripes(context, x, y, width, height, color) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.globalAlpha = 0.25;
  context.fillStyle = color;
  context.fillRect(x, y, width, height);
  context.globalAlpha = 1;
  context.strokeStyle = color;
  context.beginPath();
  // start all stripes at a fixed grid, so that the stripes of neighboring parts continue each other
  for (let at = Math.floor((x - height) / 5) * 5; at < x + width; at += 5) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}

function dots(context, x, y, width, height, color) {
  context.fillStyle = color;
  for (let across = x + 1.5; across < x + width - 0.5; across += 4) {
    for (let down = y + 1.5; down < y + height - 0.5; down += 4) context.fillRect(across, down, 1.5, 1.5);
  }
}

/** Draws a part of a bar: stripes for the allocated amount, and from below a solid fill for the used amount. */
export function part(context, x, y, width, height, color, used) {
  stripes(context, x, y, width, height, color);
  context.fillStyle = color;
  context.fillRect(x, y + height * (1 - used), width, height * used);
}

/** Returns the rectangles of the parts of a row as [part, x, width]. Small parts are at least one pixel wide. */
export function spans(row, width) {
  let at = 0;
  const scale = row.total > 0 ? width / row.total : 0;
  return row.parts.map((each) => {
    const from = at * scale;
    at += each.amount;
    return [each, from, Math.max(1, at * scale - from - (each.amount * scale > 3 ? 1 : 0))];
  });
}

/** Draws the rows of a host from top to bottom. `nameOf` returns the name that colors a slot. */
export function drawRows(context, width, rows, rowHeight, gap, nameOf, chosen) {
  const colors = theme();
  rows.forEach((row, number) => {
    const y = number * (rowHeight + gap);
    context.fillStyle = colors.ground;
    context.fillRect(0, y, width, rowHeight);
    for (const [each, x, wide] of spans(row, width)) {
      if (each.kind === "reserved") dots(context, x, y, wide, rowHeight, colors.quiet);
      else part(context, x, y, wide, rowHeight, colorOf(nameOf(each.slot)), each.used);
      if (chosen && each.slot?.allocation_id === chosen) {
        context.strokeStyle = colors.text;
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, Math.max(2, wide - 2), rowHeight - 2);
        context.lineWidth = 1;
      }
    }
    context.strokeStyle = row.problem ? colors.bad : colors.line;
    context.setLineDash(row.problem ? [4, 3] : []);
    context.strokeRect(0.5, y + 0.5, width - 1, rowHeight - 1);
    context.setLineDash([]);
  });
}

export const CELL = 15;
const PITCH = CELL + 3;

/** The height of a grid with one cell for each host. */
export const gridHeight = (count) => (width) => Math.max(1, Math.ceil(count / columns(width))) * PITCH;
const columns = (width) => Math.max(1, Math.floor(width / PITCH));

/** Returns the host at a point of a grid, or undefined if no host is at this point. */
export function cellAt(hosts, width, x, y) {
  const across = Math.floor(x / PITCH);
  return across < columns(width) ? hosts[Math.floor(y / PITCH) * columns(width) + across] : undefined;
}

/** Draws one cell for each host. The cell has stripes up to the allocated part, and a solid fill up to the used part. */
export function drawCells(context, width, hosts) {
  const colors = theme();
  hosts.forEach((host, number) => {
    const x = (number % columns(width)) * PITCH;
    const y = Math.floor(number / columns(width)) * PITCH;
    const bad = severity(host);
    context.fillStyle = colors.ground;
    context.fillRect(x, y, CELL, CELL);
    const allocated = CELL * fullness(host);
    stripes(context, x, y + CELL - allocated, CELL, allocated, colors.plain);
    const used = (CELL * percent(host.used.cpu_milli, host.total.cpu_milli)) / 100;
    context.fillStyle = colors.plain;
    context.fillRect(x, y + CELL - used, CELL, used);
    context.strokeStyle = bad ? colors.bad : colors.line;
    context.strokeRect(x + 0.5, y + 0.5, CELL - 1, CELL - 1);
    if (bad > 1) {
      // A cross marks a host that is lost, unreachable or unconfirmed. One stroke marks a draining host.
      context.beginPath();
      context.moveTo(x + 1, y + 1);
      context.lineTo(x + CELL - 1, y + CELL - 1);
      context.moveTo(x + CELL - 1, y + 1);
      context.lineTo(x + 1, y + CELL - 1);
      context.stroke();
    } else if (bad) {
      context.beginPath();
      context.moveTo(x + 1, y + CELL - 1);
      context.lineTo(x + CELL - 1, y + 1);
      context.stroke();
    }
  });
}
