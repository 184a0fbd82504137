// What the charts of all pages share: the stretch in view, and what mouse and keys do to it.

const $ = (id) => document.getElementById(id);

/** An element with classes, text and children; text is never markup. */
function element(tag, style, ...children) {
  const made = document.createElement(tag);
  if (style) made.className = style;
  made.append(...children);
  return made;
}

let drawing = 0;
function redraw() {
  drawing ||= requestAnimationFrame(draw);
}

/** Show from `from` to `to`, as far as there is something. */
function show(from, to) {
  const least = ui.axis === "steps" ? Math.min(1, ui.total) : ui.total * 1e-7;
  const span = Math.min(ui.total, Math.max(least, to - from));
  const middle = (from + to) / 2;
  ui.from = Math.min(Math.max(0, to - from < least ? middle - span / 2 : from), ui.total - span);
  ui.to = ui.from + span;
  hideTip();
  ui.moved();
  redraw();
}

function zoom(factor, at = (ui.from + ui.to) / 2) {
  show(at - (at - ui.from) * factor, at + (ui.to - at) * factor);
}

const pan = (share) => show(ui.from + share * (ui.to - ui.from), ui.to + share * (ui.to - ui.from));
const showAll = () => show(0, ui.total);

const factList = (facts) => element("dl", "", ...facts.flatMap(([name, text]) => [element("dt", "", name), element("dd", "", text)]));

function showTip(event, nodes) {
  const tip = $("tip");
  if (!nodes.length) return hideTip();
  tip.replaceChildren(...nodes);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const x = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
  const y = event.clientY + 14 + height > innerHeight ? event.clientY - 10 - height : event.clientY + 14;
  tip.style.transform = `translate(${Math.max(8, x)}px, ${Math.max(8, y)}px)`;
  const crosshair = $("crosshair");
  crosshair.hidden = false;
  crosshair.style.transform = `translateX(${event.clientX - $("tracks").getBoundingClientRect().left}px)`;
}

function hideTip() {
  $("tip").hidden = $("crosshair").hidden = true;
}

const offsetOf = (event) => event.clientX - ui.plot.getBoundingClientRect().left;
const inPlot = (event) => offsetOf(event) >= ui.scale.left && offsetOf(event) <= ui.scale.left + ui.scale.width;

/** Mark a stretch with the mouse to zoom to it. */
function dragToZoom(canvas, overview) {
  const brush = $("brush");
  let began = null;
  const valueOf = (event) => {
    const x = Math.min(Math.max(offsetOf(event), ui.scale.left), ui.scale.left + ui.scale.width);
    return overview ? (x - ui.scale.left) / ui.scale.width * ui.total : ui.scale.value(x);
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    began = { x: event.clientX, value: valueOf(event) };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!began) return;
    const frame = $("tracks").getBoundingClientRect(), box = canvas.getBoundingClientRect();
    brush.hidden = Math.abs(event.clientX - began.x) < 4;
    brush.style.left = `${Math.min(event.clientX, began.x) - frame.left}px`;
    brush.style.width = `${Math.abs(event.clientX - began.x)}px`;
    brush.style.top = `${box.top - frame.top}px`;
    brush.style.height = `${box.height}px`;
  });
  const end = (event) => {
    if (!began) return;
    const value = valueOf(event), moved = Math.abs(event.clientX - began.x) >= 4, from = Math.min(value, began.value);
    if (event.type === "pointerup" && moved) show(from, Math.max(value, began.value));
    else if (event.type === "pointerup" && overview) show(value - (ui.to - ui.from) / 2, value + (ui.to - ui.from) / 2);
    began = null;
    brush.hidden = true;
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
}

function onWheel(event) {
  const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    const scale = event.currentTarget === $("overview") ? scaleOf(ui.scale.left, ui.scale.width, 0, ui.total) : ui.scale;
    zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.004))), scale.value(offsetOf(event)));
  } else if (sideways) {
    event.preventDefault();
    pan((event.deltaX || event.deltaY) / ui.scale.width);
  }
}

const ZOOM_KEYS = {
  "+": () => zoom(0.5), "=": () => zoom(0.5), w: () => zoom(0.5), "-": () => zoom(2), s: () => zoom(2),
  a: () => pan(-0.25), d: () => pan(0.25), ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25), 0: showAll,
};

/** Buttons, wheel and drag over these canvases change the stretch in view. */
function listenToZoom(canvases) {
  $("zoom-in").onclick = () => zoom(0.5);
  $("zoom-out").onclick = () => zoom(2);
  $("zoom-all").onclick = showAll;
  for (const canvas of canvases) {
    canvas.addEventListener("wheel", onWheel, { passive: false });
    canvas.addEventListener("dblclick", showAll);
    canvas.addEventListener("pointerleave", hideTip);
  }
  document.addEventListener("keydown", onKey);
}

/** Tell which stretch is in view. */
function tellRange() {
  const whole = ui.to - ui.from >= ui.total * 0.999999;
  $("range").textContent = `${ui.axisText(ui.from)} to ${ui.axisText(ui.to)}${ui.axis === "steps" ? " steps" : ""}`;
  $("zoom-out").disabled = $("zoom-all").disabled = whole;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input[type=search], select");
  if (event.key === "/" && !typing && $("search")) {
    event.preventDefault();
    $("search").focus();
    $("search").select();
  } else if (KEYS[event.key] && $("tracks").contains(event.target) && !event.target.matches("input, select, button")) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

function listenToTheme() {
  const root = document.documentElement, button = $("theme"), dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = (theme) => {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    button.textContent = (theme ?? (dark.matches ? "dark" : "light")) === "dark" ? "Light" : "Dark";
    ui.colours = readColours();
    if (ui.scale) draw();
  };
  button.onclick = () => apply(button.textContent.toLowerCase());
  dark.addEventListener("change", () => apply());
  // Paper is white, whatever the screen is.
  let before;
  window.addEventListener("beforeprint", () => { before = root.dataset.theme; apply("light"); });
  window.addEventListener("afterprint", () => apply(before));
  apply();
}
