// The page: what is in view, and what mouse and keys do to it.

const ui = {
  from: 0, to: 1, total: 1, top: 1, axis: "time",
  rows: [], rowHeight: ROW, scrollTop: 0, viewHeight: 1,
  selected: -1, selectedRow: -1, gutter: 100,
  edges: (run) => ui.axis === "time" ? run.times : run.indices,
  moved: () => { if ($("in-view").value !== "all") chooseRows(ui.hovered ?? ui.selected); },
  axisText: (value) => ui.axis === "time" ? formatTime(value, ui.graph.unit) : grouped(value),
};

function start() {
  const data = JSON.parse($("data").textContent);
  const graphs = data.graphs.map((raw) => readGraph(raw, data));
  ui.runs = data.runs.map((raw, index) => ({ ...readRun(raw, graphs[raw.graph]), isPlain: index === 0 }));
  for (const run of ui.runs) {
    run.firstBackward = run.subject.findIndex((op, moment) => run.doing[moment] <= RERUN && run.graph.backward[op]);
  }
  chooseRun(ui.runs[ui.runs.length - 1]);
  const peaks = ui.runs.map((run) => run.memory[run.peak]), { budget } = ui.graph;
  ui.top = Math.max(1, ...peaks);
  // A budget far above everything would press the chart flat.
  if (budget !== null && budget <= ui.top * 4 / 3) ui.top = Math.max(ui.top, budget);
  ui.top *= 1.06;
  if (ui.runs.every((run) => run.times[run.moments] === 0)) {
    ui.axis = "steps";
    document.querySelector("#axis [value=time]").disabled = true;
    document.querySelector("#axis [value=steps]").checked = true;
  }
  ui.total = totalOf();
  ui.to = ui.total;
  ui.plot = $("memory");
  for (const part of document.querySelectorAll(".js")) part.hidden = false;
  fillChoices();
  listen();
  linkNames();
  ui.colours = readColours();
  $("lifetimes").style.height = `${Math.min(460, Math.max(120, ui.graph.names.length * ROW + 2))}px`;
  layOut();
  chooseRows();
}

/** Show the lifetimes of a run; a step in parts and its plain run have a graph each. */
function chooseRun(run) {
  const selected = ui.selected < 0 ? undefined : ui.graph.names[ui.selected];
  ui.run = run;
  if (ui.graph === run.graph) return;
  ui.graph = run.graph;
  ui.selected = ui.graph.names.indexOf(selected);
  ui.hovered = undefined;
  ui.haystack = ui.graph.names.map((name, tensor) => {
    const op = ui.graph.producer[tensor];
    return `${name}\n${op < 0 ? "" : `${ui.graph.opNames[op]}\n${ui.graph.opTypes[op]}`}`.toLowerCase();
  });
}

const totalOf = () => Math.max(...ui.runs.map((run) => ui.edges(run)[run.moments]));

function fillChoices() {
  ui.runs.forEach((run, index) => $("run").add(new Option(run.label, index, run === ui.run, run === ui.run)));
  const swatch = (style, text) => element("li", style, text);
  $("legend").append(
    ...ui.runs.map((run) => swatch(run.isPlain ? "plain" : "plan", run.label)),
    ...(ui.graph.budget === null ? [] : [swatch("budget", "budget")]),
    swatch("forward", ui.graph.backward.some(Boolean) ? "forward op" : "op"),
    ...(ui.graph.backward.some(Boolean) ? [swatch("backward", "backward op")] : []),
    ...(ui.run.doing.includes(RERUN) ? [swatch("again", "op runs again")] : []),
    ...(ui.run.doing.includes(OFFLOAD) ? [swatch("host", "waiting for the host")] : []),
  );
  $("bars").append(
    swatch("plan", "in memory"),
    ...(ui.run.doing.includes(RERUN) ? [swatch("again", "recomputed")] : []),
    ...(ui.run.doing.includes(PREFETCH) ? [swatch("host", "brought back from the host")] : []),
    ...(ui.run.doing.includes(PREFETCH) ? [swatch("on-host", "on the host")] : []),
    ...(ui.run.doing.includes(RERUN) ? [swatch("away", "dropped for a while")] : []),
    ...(ui.graph.producer.some((op) => op < 0) ? [swatch("input", "graph input")] : []),
  );
  $("views").checked = fillFates() === ui.graph.bytes.length;
}

/** Fill in what is chosen by; return the number of tensors without bytes. */
function fillFates() {
  const views = ui.graph.bytes.reduce((sum, size) => sum + (size === 0), 0);
  $("views-label").hidden = views === 0 || views === ui.graph.bytes.length;
  $("views-label").lastElementChild.textContent = `${grouped(views)} of 0 bytes too`;
  const counts = Object.fromEntries(FATES.map((fate) => [fate, 0]));
  ui.fates = ui.graph.names.map((_, tensor) => fateOf(ui.run, tensor));
  for (const fate of ui.fates) counts[fate]++;
  const chosen = $("fate").value;
  $("fate").replaceChildren(new Option("all tensors", ""));
  for (const fate of FATES) if (counts[fate]) $("fate").add(new Option(`${fate} (${grouped(counts[fate])})`, fate));
  $("fate").value = counts[chosen] ? chosen : "";
  return views;
}

/** Measure the page, and draw. */
function layOut() {
  const width = $("tracks").clientWidth;
  ui.gutter = Math.min(210, Math.max(86, width * 0.17));
  ui.viewHeight = $("lifetimes").clientHeight;
  setRowHeight();
  redraw();
}

function setRowHeight() {
  const fitting = ui.viewHeight / Math.max(1, ui.rows.length), mode = $("rows").value;
  ui.rowHeight = mode === "names" || (mode === "auto" && fitting >= 4) ? ROW : Math.min(ROW, fitting);
  $("spacer").style.height = `${Math.max(ui.viewHeight, Math.floor(ui.rows.length * ui.rowHeight))}px`;
}

function draw() {
  cancelAnimationFrame(drawing);
  drawing = 0;
  const began = performance.now(), width = $("memory").clientWidth;
  ui.scale = scaleOf(ui.gutter, width - ui.gutter - GAP, ui.from, ui.to);
  ui.scrollTop = $("lifetimes").scrollTop;
  drawOverview($("overview"), ui);
  drawMemory($("memory"), ui);
  drawLifetimes($("bars-canvas"), ui);
  tellRange();
  ui.drawMilliseconds = performance.now() - began;
}

/** Choose and order the rows; the one that is looked at stays where it is. */
function chooseRows(kept = ui.selected) {
  const before = ui.rows.indexOf(kept), offset = before < 0 ? 0 : before * ui.rowHeight - $("lifetimes").scrollTop;
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean), fate = $("fate").value;
  const empty = $("views").checked || words.length > 0, inView = isInView();
  const found = [];
  let hits = 0;
  for (const tensor of ordered()) {
    if (!empty && ui.graph.bytes[tensor] === 0) continue;
    if (fate && ui.fates[tensor] !== fate) continue;
    if (!words.every((word) => ui.haystack[tensor].includes(word))) continue;
    hits++;
    if (inView(tensor)) found.push(tensor);
  }
  ui.rows = found;
  ui.selectedRow = found.indexOf(ui.selected);
  const shown = found.length === hits ? grouped(hits) : `${grouped(found.length)} in view of ${grouped(hits)}`;
  $("matches").textContent = `${shown} ${hits === 1 ? "tensor" : "tensors"}`;
  setRowHeight();
  const after = found.indexOf(kept);
  if (before >= 0 && after >= 0) $("lifetimes").scrollTop = after * ui.rowHeight - offset;
  redraw();
}

/** Which tensors have a row while the page is zoomed in: all that come or go in view, all that are there, or all. */
function isInView() {
  const edges = ui.edges(ui.run), { first, start, end } = ui.run, among = $("in-view").value;
  if (among === "all" || ui.to - ui.from >= ui.total) return () => true;
  const seen = (moment) => edges[moment] >= ui.from && edges[moment] <= ui.to;
  if (among === "there") return (tensor) => edges[start[first[tensor]]] <= ui.to && edges[end[first[tensor + 1] - 1]] >= ui.from;
  return (tensor) => {
    if (tensor === ui.selected) return true;
    for (let stay = first[tensor]; stay < first[tensor + 1]; stay++) {
      if (ui.run.arrival[stay] !== GIVEN && (seen(start[stay]) || seen(end[stay]))) return true;
    }
    return false;
  };
}

const orders = new Map();
function ordered() {
  const key = `${ui.runs.indexOf(ui.run)} ${$("sort").value}`;
  if (!orders.has(key)) orders.set(key, sorted($("sort").value));
  return orders.get(key);
}

function sorted(by) {
  const { graph, run } = ui, start = (tensor) => run.start[run.first[tensor]];
  const natural = (a, b) => start(a) - start(b) || graph.bytes[b] - graph.bytes[a] || a - b;
  const compare = {
    start: natural,
    bytes: (a, b) => graph.bytes[b] - graph.bytes[a] || natural(a, b),
    cost: (a, b) => run.cost[b] - run.cost[a] || natural(a, b),
    name: (a, b) => graph.names[a] < graph.names[b] ? -1 : graph.names[a] > graph.names[b] ? 1 : a - b,
  };
  return graph.names.map((_, tensor) => tensor).sort(compare[by]);
}

function zoomTo(tensor) {
  const edges = ui.edges(ui.run), { first, start, end } = ui.run;
  const from = edges[start[first[tensor]]], to = edges[end[first[tensor + 1] - 1]], room = Math.max((to - from) * 0.06, ui.total * 1e-6);
  ui.hovered = undefined;
  show(from - room, to + room);
  revealRow();
}

/** Make a tensor the one that is told of below the chart; -1 for none. */
function select(tensor) {
  ui.selected = tensor;
  ui.selectedRow = ui.rows.indexOf(tensor);
  $("details").replaceChildren(...(tensor < 0 ? [] : detailsOf(tensor)));
  redraw();
}

function revealRow() {
  const box = $("lifetimes"), top = ui.selectedRow * ui.rowHeight;
  if (ui.selectedRow < 0) return;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + ui.rowHeight > box.scrollTop + ui.viewHeight) box.scrollTop = top + ui.rowHeight - ui.viewHeight;
}

/** Leave only what stands in the way of a tensor's row. */
function lookUp(tensor) {
  if (!ui.rows.includes(tensor)) {
    $("search").value = "";
    $("fate").value = "";
    if (ui.graph.bytes[tensor] === 0) $("views").checked = true;
    chooseRows(-1);
    if (!ui.rows.includes(tensor)) showAll();
  }
  select(tensor);
  revealRow();
}

function detailsOf(tensor) {
  const nodes = [element("p", "name", ui.graph.names[tensor]), factsOf(tensor), storyList(storyOf(ui.run, ui.graph, tensor))];
  const to = element("button", "", "Zoom to it"), close = element("button", "", "Close");
  to.onclick = () => zoomTo(tensor);
  close.onclick = () => select(-1);
  return [...nodes, element("div", "buttons", to, close)];
}

function factsOf(tensor) {
  const { graph, run } = ui, op = graph.producer[tensor];
  const facts = [["size", formatBytes(graph.bytes[tensor])]];
  if (graph.kinds[tensor]) facts.push(["type", graph.kinds[tensor]]);
  facts.push(["made by", op < 0 ? "nothing: a graph input" : graph.opNames[op] + (graph.opTypes[op] ? ` (${graph.opTypes[op]})` : "")]);
  facts.push([`in the ${run.label}`, ui.fates[tensor] + (run.cost[tensor] ? `, which takes ${formatTime(run.cost[tensor], graph.unit)}` : "")]);
  return factList(facts);
}

function storyList(story, most = 40) {
  const items = story.slice(0, most).map(([style, when, what]) => element("li", style, ...(when ? [element("span", "when", when), " "] : []), what));
  if (story.length > most) items.push(element("li", "", `and ${grouped(story.length - most)} more`));
  return element("ol", "", ...items);
}

/** What the mouse says of a tensor: the stay that it is on, or what came before and comes after. */
function tensorTip(tensor, value) {
  const { run, graph } = ui, moment = momentAt(ui.edges(run), value), stay = stayAt(run, tensor, moment);
  let story = stay >= 0 ? storyOfStay(run, graph, tensor, stay) : [];
  if (stay < 0) {
    let next = run.first[tensor];
    while (next < run.first[tensor + 1] && run.start[next] <= moment) next++;
    if (next > run.first[tensor]) story.push(storyOfStay(run, graph, tensor, next - 1).at(-1));
    if (next < run.first[tensor + 1]) story.push(storyOfStay(run, graph, tensor, next)[0]);
  }
  return [element("div", "name", graph.names[tensor]), factsOf(tensor), storyList(story)];
}

function momentTip(value) {
  const { graph } = ui, nodes = [], facts = [];
  for (const run of [...ui.runs].reverse()) {
    const edges = ui.edges(run);
    if (value > edges[run.moments]) continue;
    const moment = momentAt(edges, value);
    if (run === ui.run) {
      nodes.push(element("div", "name", doingAt(run, graph, moment)), element("div", "when", when(run, graph, moment)));
    }
    facts.push([run.label, formatBytes(run.memory[moment])]);
    if (run === ui.run) facts.push(...linkAt(run, graph, ui.axis === "time" ? value : run.times[moment]));
    if (run === ui.run) for (const tensor of largestAt(run, graph, moment, 5)) facts.push(["", `${formatBytes(graph.bytes[tensor])}  ${graph.names[tensor]}`]);
  }
  return facts.length ? [...nodes, factList(facts)] : [];
}

/** What goes over the link at a time: the way, and the tensor. */
function linkAt(run, graph, time) {
  return run.link.flatMap((queue) => {
    const transfer = transferAt(queue, time);
    return transfer < 0 ? [] : [[queue.label, graph.names[queue.tensor[transfer]]]];
  });
}

/** The tensor under the mouse; of many in one pixel, the largest that is in memory there. */
function tensorUnder(event) {
  const y = event.clientY - $("lifetimes").getBoundingClientRect().top - $("lifetimes").clientTop + $("lifetimes").scrollTop;
  const first = Math.floor(y / ui.rowHeight), last = Math.min(ui.rows.length - 1, Math.max(first, Math.floor((y + 1) / ui.rowHeight)));
  if (first < 0 || first >= ui.rows.length) return -1;
  const moment = momentAt(ui.edges(ui.run), ui.scale.value(offsetOf(event)));
  let best = ui.rows[first];
  const weight = (tensor) => stayAt(ui.run, tensor, moment) < 0 ? -1 : ui.graph.bytes[tensor];
  for (let row = first + 1; row <= last; row++) if (weight(ui.rows[row]) > weight(best)) best = ui.rows[row];
  return best;
}

function listen() {
  for (const id of ["search", "fate", "sort", "in-view", "views"]) $(id).addEventListener("input", () => {
    // A new question begins at its first answer.
    if (id === "search" || id === "sort") $("lifetimes").scrollTop = 0;
    chooseRows(id === "search" || id === "sort" ? -1 : ui.selected);
  });
  $("rows").addEventListener("input", layOut);
  $("run").addEventListener("input", () => {
    chooseRun(ui.runs[$("run").value]);
    fillFates();
    select(ui.selected);
    chooseRows();
  });
  $("axis").addEventListener("input", (event) => {
    ui.axis = event.target.value;
    ui.total = totalOf();
    showAll();
    chooseRows();
  });
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && ui.rows.length) {
      select(ui.rows[0]);
      zoomTo(ui.rows[0]);
    } else if (event.key === "Escape") event.target.blur();
  });
  $("lifetimes").addEventListener("scroll", () => { hideTip(); redraw(); });
  listenToMouse();
  listenToTheme();
  new ResizeObserver(layOut).observe($("tracks"));
  new ResizeObserver(layOut).observe($("lifetimes"));
}

function listenToMouse() {
  for (const id of ["overview", "memory"]) dragToZoom($(id), id === "overview");
  listenToZoom(["overview", "memory", "lifetimes"].map($));
  $("memory").addEventListener("pointermove", (event) => {
    if (!event.buttons && inPlot(event)) showTip(event, momentTip(ui.scale.value(offsetOf(event))));
    else hideTip();
  });
  const box = $("lifetimes");
  let held = null;
  box.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && offsetOf(event) <= $("memory").clientWidth) held = { x: event.clientX, from: ui.from, to: ui.to, moved: false };
  });
  box.addEventListener("pointermove", (event) => {
    if (held && event.buttons) return dragLifetimes(event, held);
    const tensor = tensorUnder(event);
    ui.hovered = tensor < 0 ? undefined : tensor;
    if (tensor < 0) hideTip();
    else showTip(event, tensorTip(tensor, ui.scale.value(offsetOf(event))));
  });
  box.addEventListener("pointerleave", () => { ui.hovered = undefined; });
  window.addEventListener("pointerup", (event) => {
    if (held && !held.moved && box.contains(event.target)) select(tensorUnder(event));
    held = null;
  });
}

function dragLifetimes(event, held) {
  const distance = event.clientX - held.x;
  if (!held.moved && Math.abs(distance) < 4) return;
  held.moved = true;
  const by = -distance / ui.scale.width * (held.to - held.from);
  const from = Math.min(Math.max(0, held.from + by), ui.total - (held.to - held.from));
  show(from, from + held.to - held.from);
}

const KEYS = {
  ...ZOOM_KEYS,
  Escape: () => { hideTip(); select(-1); },
  Enter: () => ui.selected >= 0 && zoomTo(ui.selected),
  ArrowDown: () => step(1), ArrowUp: () => step(-1), PageDown: () => step(20), PageUp: () => step(-20),
};

function step(by) {
  if (!ui.rows.length) return;
  const row = ui.selectedRow < 0 ? (by > 0 ? 0 : ui.rows.length - 1) : ui.selectedRow + by;
  select(ui.rows[Math.min(Math.max(0, row), ui.rows.length - 1)]);
  revealRow();
}

/** Names in the tables lead to the tensors that they are of; the name of an op, to what it makes. */
function linkNames() {
  const { graph } = ui;
  const made = graph.opNames.map(() => []);
  graph.producer.forEach((op, tensor) => { if (op >= 0) made[op].push(tensor); });
  for (const name of document.querySelectorAll(".name[data-op]")) {
    const tensors = made[name.dataset.op];
    const tensor = tensors[name.dataset.output] ?? tensors.find((each) => graph.bytes[each] > 0) ?? tensors[0];
    if (tensor === undefined) continue;
    const button = element("button", "link name", name.textContent);
    button.type = "button";
    button.onclick = () => {
      if (ui.graph !== graph) {
        $("run").value = ui.runs.length - 1;
        $("run").dispatchEvent(new Event("input"));
      }
      lookUp(tensor);
      $("timeline").scrollIntoView({ block: "start" });
      $("lifetimes").focus({ preventScroll: true });
    };
    name.replaceWith(button);
  }
}

start();
