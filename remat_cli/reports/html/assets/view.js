// Drawing: memory over time, what runs when, and the lifetimes, all along one axis.

const GAP = 12, STRIP = 18, QUEUE = 12, AXIS = 20, ROW = 17, LABELLED = 11;
const COLOURS = ["text", "quiet", "grid", "hover", "card", "edge", "plain", "plain-line", "plan", "plan-fill", "again", "host",
  "input", "budget", "backward"];

/** The page's colours as they are now, resolved for a canvas. */
function readColours() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const colours = {};
  for (const name of COLOURS) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  const style = getComputedStyle(document.documentElement);
  return { ...colours, sans: style.getPropertyValue("--sans"), mono: style.getPropertyValue("--mono") };
}

/** Make a canvas as sharp as the screen, and return its context, measured in CSS pixels. */
function prepared(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Where values of the axis stand: from `left` on, `width` pixels for `from` to `to`. */
function scaleOf(left, width, from, to) {
  return {
    left, width, from, to,
    x: (value) => left + (value - from) / (to - from) * width,
    value: (x) => from + (x - left) / width * (to - from),
  };
}

/** Call `each(moment, first, last)` with the pixel columns of every moment in view. */
function eachInView(run, edges, scale, each) {
  const columns = Math.ceil(scale.width);
  let moment = momentAt(edges, scale.from);
  // Moments without time stand where the next one begins.
  while (moment > 0 && edges[moment - 1] === edges[moment]) moment--;
  for (; moment < run.moments && edges[moment] <= scale.to; moment++) {
    const first = Math.max(0, Math.floor(scale.x(edges[moment]) - scale.left));
    const last = Math.min(columns - 1, Math.max(first, Math.ceil(scale.x(edges[moment + 1]) - scale.left) - 1));
    if (first < columns && last >= 0) each(moment, first, last);
  }
}

/** The largest memory in each pixel column; -1 where the run has ended. No peak is lost, however much is in view. */
function memoryColumns(run, edges, scale) {
  const largest = new Float64Array(Math.ceil(scale.width)).fill(-1);
  eachInView(run, edges, scale, (moment, first, last) => {
    const size = run.memory[moment];
    for (let column = first; column <= last; column++) if (largest[column] < size) largest[column] = size;
  });
  return largest;
}

function drawArea(context, largest, scale, y, bottom, fill, line) {
  const path = new Path2D();
  let end = largest.length;
  while (end > 0 && largest[end - 1] < 0) end--;
  if (!end) return;
  for (let column = 0; column < end; column++) {
    const height = y(Math.max(0, largest[column]));
    path.lineTo(scale.left + column, height);
    path.lineTo(scale.left + column + 1, height);
  }
  const area = new Path2D(path);
  area.lineTo(scale.left + end, bottom);
  area.lineTo(scale.left, bottom);
  context.fillStyle = fill;
  context.fill(area);
  if (!line) return;
  context.strokeStyle = line;
  context.lineWidth = 1.3;
  context.stroke(path);
}

/** Round values of an axis, about `count` of them. */
function ticksOf(from, to, count) {
  const rough = (to - from) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) ticks.push(tick);
  return ticks;
}

function drawOverview(canvas, ui) {
  const width = canvas.clientWidth, height = 40, context = prepared(canvas, width, height), { colours } = ui;
  const scale = scaleOf(ui.scale.left, ui.scale.width, 0, ui.total);
  const y = (size) => height - 1 - size / ui.top * (height - 4);
  for (const run of ui.runs) {
    drawArea(context, memoryColumns(run, ui.edges(run), scale), scale, y, height - 1, colours[run.isPlain ? "plain" : "plan-fill"], null);
  }
  const left = scale.x(ui.from), right = scale.x(ui.to);
  context.fillStyle = colours.card;
  context.globalAlpha = 0.72;
  context.fillRect(scale.left - 1, 0, left - scale.left + 1, height);
  context.fillRect(right, 0, scale.left + scale.width - right + 1, height);
  context.globalAlpha = 1;
  context.strokeStyle = colours.quiet;
  context.strokeRect(left + 0.5, 0.5, Math.max(2, right - left - 1), height - 1);
  gutterText(context, ui, "everything", height / 2, colours.quiet);
}

function gutterText(context, ui, text, y, colour, font) {
  context.font = font ?? `11px ${ui.colours.sans}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillStyle = colour;
  context.fillText(text, ui.scale.left - 8, y);
}

function drawMemory(canvas, ui) {
  const queues = ui.run.link.length * QUEUE;
  const width = canvas.clientWidth, height = (canvas.clientWidth < 600 ? 226 : 286) + queues;
  const context = prepared(canvas, width, height), { colours, scale } = ui;
  const bottom = height - AXIS - STRIP - 6 - queues, top = 20;
  const y = (size) => bottom - size / ui.top * (bottom - top);
  context.lineWidth = 1;
  for (const size of ticksOf(0, ui.top, 5)) {
    context.fillStyle = colours.grid;
    context.fillRect(scale.left, Math.round(y(size)), scale.width, 1);
    gutterText(context, ui, formatBytes(size), y(size), colours.quiet);
  }
  for (const run of ui.runs) {
    const area = memoryColumns(run, ui.edges(run), scale);
    drawArea(context, area, scale, y, bottom, colours[run.isPlain ? "plain" : "plan-fill"], colours[run.isPlain ? "plain-line" : "plan"]);
  }
  drawFixed(context, ui, y, bottom);
  drawPhases(context, ui, top, bottom);
  const { budget } = ui.graph;
  if (budget !== null && budget <= ui.top) {
    drawBudget(context, ui, y(budget));
    label(context, ui, `budget ${formatBytes(budget)}`, scale.left + scale.width - 4, y(budget) - 4, colours.budget, "right");
  }
  for (const run of ui.runs) drawPeak(context, ui, run, y);
  drawStrip(context, ui, bottom + 5);
  ui.run.link.forEach((queue, number) => drawQueue(context, ui, queue, bottom + 5 + STRIP + 2 + number * QUEUE));
  drawAxis(context, ui, height);
}

/** Mark what is always there, which no plan can change. */
function drawFixed(context, ui, y, bottom) {
  const at = y(ui.graph.fixed), { colours, scale } = ui;
  if (bottom - at < 2) return;
  context.fillStyle = colours.input;
  context.globalAlpha = 0.35;
  context.fillRect(scale.left, at, scale.width, bottom - at);
  context.globalAlpha = 1;
  if (bottom - at < 14) return;
  context.font = `11px ${colours.sans}`;
  context.fillStyle = colours.text;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(`always there ${formatBytes(ui.graph.fixed)}`, scale.left + 6, (at + bottom) / 2);
}

function drawPhases(context, ui, top, bottom) {
  const { scale, colours, run } = ui;
  if (run.firstBackward < 0) return;
  const x = scale.x(ui.edges(run)[run.firstBackward]);
  if (x < scale.left || x > scale.left + scale.width) return;
  context.strokeStyle = colours.quiet;
  context.globalAlpha = 0.6;
  context.setLineDash([2, 3]);
  line(context, x, top - 12, x, bottom);
  context.setLineDash([]);
  context.globalAlpha = 1;
  context.font = `11px ${colours.sans}`;
  context.fillStyle = colours.quiet;
  context.textBaseline = "top";
  context.textAlign = "right";
  if (x - scale.left > 60) context.fillText("forward", x - 6, top - 13);
  context.textAlign = "left";
  if (scale.left + scale.width - x > 70) context.fillText("backward", x + 6, top - 13);
}

function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

function drawBudget(context, ui, at) {
  const { scale, colours } = ui;
  context.strokeStyle = colours.budget;
  context.lineWidth = 1.6;
  context.setLineDash([7, 4]);
  line(context, scale.left, at, scale.left + scale.width, at);
  context.setLineDash([]);
}

/** Text that stands out from whatever is behind it. */
function label(context, ui, text, x, y, colour, align) {
  context.font = `600 11px ${ui.colours.sans}`;
  context.textAlign = align;
  context.textBaseline = "bottom";
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeStyle = ui.colours.card;
  context.strokeText(text, x, y);
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

function drawPeak(context, ui, run, y) {
  const edges = ui.edges(run), { scale, colours } = ui;
  const x = scale.x((edges[run.peak] + edges[run.peak + 1]) / 2), at = y(run.memory[run.peak]);
  if (x < scale.left || x > scale.left + scale.width) return;
  context.beginPath();
  context.arc(x, at, 3.2, 0, 7);
  context.fillStyle = colours[run.isPlain ? "plain-line" : "plan"];
  context.fill();
  context.lineWidth = 1.5;
  context.strokeStyle = colours.card;
  context.stroke();
  const onRight = x < scale.left + scale.width / 2;
  const colour = colours[run.isPlain ? "quiet" : "plan"];
  // Just under the budget's line, there is room below only.
  const below = !run.isPlain && ui.graph.budget !== null && Math.abs(y(ui.graph.budget) - at) < 22;
  label(context, ui, formatBytes(run.memory[run.peak]), x + (onRight ? 7 : -7), at + (below ? 16 : -2), colour, onRight ? "left" : "right");
}

/** What runs when: forward or backward and, from below, the share of each pixel column that runs again or waits. */
function drawStrip(context, ui, top) {
  const { run, graph, scale, colours } = ui, edges = ui.edges(run), columns = Math.ceil(scale.width);
  const bases = new Int8Array(columns).fill(-1), again = new Float64Array(columns), waiting = new Float64Array(columns);
  const wide = [];
  eachInView(run, edges, scale, (moment, first, last) => {
    const from = scale.x(edges[moment]) - scale.left, to = scale.x(edges[moment + 1]) - scale.left;
    const shares = run.doing[moment] === RERUN ? again : run.doing[moment] > RERUN ? waiting : null;
    if (last - first >= 3) wide.push([moment, first, last]);
    for (let column = first; column <= last; column++) {
      if (run.doing[moment] <= RERUN) bases[column] = graph.backward[run.subject[moment]];
      // What runs again in the backward pass is there for it.
      if (run.doing[moment] === RERUN && ui.edges(run)[run.firstBackward] <= edges[moment]) bases[column] = 1;
      if (shares) shares[column] += Math.max(0, Math.min(to, column + 1) - Math.max(from, column));
    }
  });
  for (let column = 0; column < columns; column++) {
    const part = (shares, colour, opacity, least) => {
      const height = STRIP * Math.min(1, Math.max(least, shares));
      context.globalAlpha = opacity;
      context.fillStyle = colour;
      context.fillRect(scale.left + column, top + STRIP - height, 1, height);
    };
    if (bases[column] >= 0) part(1, bases[column] ? colours.backward : colours.plan, 0.5, 1);
    if (waiting[column] > 0) part(waiting[column], colours.host, 1, 0.25);
    if (again[column] > 0) part(again[column], colours.again, 1, 0.25);
  }
  context.globalAlpha = 1;
  context.font = `10.5px ${colours.mono}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (const [moment, first, last] of wide) {
    context.fillStyle = colours.card;
    context.fillRect(scale.left + last, top, 1, STRIP);
    if (last - first < 40) continue;
    context.fillStyle = run.doing[moment] === FIRST_RUN ? colours.text : colours.card;
    const name = run.doing[moment] <= RERUN ? graph.opNames[run.subject[moment]] : "wait";
    context.fillText(fitted(name, last - first - 8, 6.4), scale.left + first + 4, top + STRIP / 2 + 1);
  }
  gutterText(context, ui, ui.gutter < 120 ? "ops" : `ops of the ${run.label}`, top + STRIP / 2, colours.quiet);
}

/** How busy a queue of the link is: in each pixel column, the share of its time. */
function drawQueue(context, ui, queue, top) {
  const { scale, colours, run } = ui, height = QUEUE - 2;
  const shares = new Float64Array(Math.ceil(scale.width)), place = (time) => ui.axis === "time" ? time : momentOf(run, time);
  queue.start.forEach((start, each) => {
    const from = Math.max(0, scale.x(place(start)) - scale.left);
    const to = Math.min(shares.length, scale.x(place(queue.end[each])) - scale.left);
    for (let column = Math.floor(from); column < to; column++) {
      shares[column] += Math.max(0, Math.min(to, column + 1) - Math.max(from, column));
    }
  });
  context.fillStyle = colours.grid;
  context.fillRect(scale.left, top + height - 1, scale.width, 1);
  context.fillStyle = colours.host;
  shares.forEach((share, column) => {
    const filled = share > 0 ? Math.max(1, height * Math.min(1, share)) : 0;
    context.fillRect(scale.left + column, top + height - filled, 1, filled);
  });
  gutterText(context, ui, queue.label === "link" || ui.gutter < 120 ? queue.label : `link ${queue.label}`, top + height / 2, colours.quiet);
}

/** A name in so many pixels: its middle goes, where two names are often alike. */
function fitted(name, width, each) {
  const most = Math.floor(width / each);
  if (name.length <= most) return name;
  if (most < 3) return most > 0 ? name.slice(0, most) : "";
  const tail = (most - 1) >> 1;
  return `${name.slice(0, most - 1 - tail)}…${tail ? name.slice(-tail) : ""}`;
}

function drawAxis(context, ui, height) {
  const { scale, colours } = ui;
  context.font = `11px ${colours.sans}`;
  context.textBaseline = "bottom";
  context.textAlign = "center";
  for (const tick of ticksOf(scale.from, scale.to, scale.width / 110)) {
    const x = Math.round(scale.x(tick));
    context.fillStyle = colours.edge;
    context.fillRect(x, height - AXIS, 1, 4);
    context.fillStyle = colours.quiet;
    if (x - scale.left > 12 && scale.left + scale.width - x > 18) context.fillText(ui.axisText(tick), x, height - 1);
  }
}

function drawLifetimes(canvas, ui) {
  const width = canvas.clientWidth, height = ui.viewHeight, context = prepared(canvas, width, height);
  const { colours, scale, run, rows, rowHeight, scrollTop } = ui, edges = ui.edges(run);
  context.fillStyle = colours.grid;
  for (const tick of ticksOf(scale.from, scale.to, scale.width / 110)) context.fillRect(Math.round(scale.x(tick)), 0, 1, height);
  const first = Math.max(0, Math.floor(scrollTop / rowHeight)), last = Math.min(rows.length, Math.ceil((scrollTop + height) / rowHeight));
  if (ui.selectedRow >= first && ui.selectedRow < last) {
    context.fillStyle = colours.hover;
    context.fillRect(0, ui.selectedRow * rowHeight - scrollTop, width, Math.max(3, rowHeight));
  }
  const paints = [colours.plan, colours.again, colours.host, colours.input];
  const thick = Math.max(1, rowHeight > 4 ? rowHeight - 4 : rowHeight * 0.9);
  // What was made for the first time lies behind what came back, should rows be thinner than a pixel.
  for (const layer of [0, 1, 2]) {
    for (let row = first; row < last; row++) {
      const top = row * rowHeight - scrollTop + (rowHeight - thick) / 2, tensor = rows[row];
      const begin = run.first[tensor], end = run.first[tensor + 1];
      if (layer === 0) {
        for (let stay = begin; stay < end - 1; stay++) {
          const onHost = run.arrival[stay + 1] === FETCHED;
          drawAway(context, ui, edges[run.end[stay]], edges[run.start[stay + 1]], top + thick / 2, rowHeight, onHost);
        }
        continue;
      }
      for (let stay = begin; stay < end; stay++) {
        const arrival = run.arrival[stay], again = arrival === RECOMPUTED || arrival === FETCHED;
        if (again === (layer === 2)) {
          context.fillStyle = paints[arrival];
          drawBar(context, ui, tensor, edges[run.start[stay]], edges[run.end[stay]], top, thick);
        }
      }
    }
  }
  if (rowHeight >= LABELLED) drawNames(context, ui, first, last);
  else gutterText(context, ui, `${grouped(rows.length)} tensors`, height / 2, colours.quiet);
  if (!rows.length) emptyText(context, ui, width, height);
}

/** A tensor between two stays: dotted where it is nowhere, a line where the host has it. */
function drawAway(context, ui, from, to, y, rowHeight, onHost) {
  const { scale, colours } = ui;
  const left = Math.max(scale.left, scale.x(from)), right = Math.min(scale.left + scale.width, scale.x(to));
  if ((rowHeight < 3 && !onHost) || right <= left) return;
  context.fillStyle = onHost ? colours.host : colours.quiet;
  context.globalAlpha = onHost ? 0.6 : 0.45;
  const thick = Math.min(1.5, rowHeight * 0.35);
  if (onHost) context.fillRect(left, y - thick / 2, right - left, thick);
  else if (rowHeight < LABELLED) context.fillRect(left, y, right - left, 0.5);
  else for (let x = left; x < right; x += 4) context.fillRect(x, y - 0.5, 1.5, 1);
  context.globalAlpha = 1;
}

function drawBar(context, ui, tensor, from, to, top, thick) {
  const { scale, colours } = ui, end = scale.left + scale.width;
  const left = scale.x(from), right = Math.max(left + 1, scale.x(to));
  if (right < scale.left || left > end) return;
  const x = Math.max(scale.left, left), width = Math.min(end, right) - x;
  context.fillRect(x, top, Math.max(1, width), thick);
  if (ui.rowHeight < LABELLED || width < 64) return;
  context.font = `10.5px ${colours.sans}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = colours.card;
  context.fillText(formatBytes(ui.graph.bytes[tensor]), x + 5, top + thick / 2 + 0.5);
}

function drawNames(context, ui, first, last) {
  for (let row = first; row < last; row++) {
    const y = (row + 0.5) * ui.rowHeight - ui.scrollTop, name = ui.graph.names[ui.rows[row]];
    const colour = row === ui.selectedRow ? ui.colours.plan : ui.colours.text;
    gutterText(context, ui, fitted(name, ui.gutter - 14, 6.65), y, colour, `11px ${ui.colours.mono}`);
  }
}

function emptyText(context, ui, width, height) {
  context.font = `13px ${ui.colours.sans}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = ui.colours.quiet;
  context.fillText("No tensor is called like that, or none is in view.", width / 2, height / 2);
}
