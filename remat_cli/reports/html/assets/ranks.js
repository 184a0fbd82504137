// The page of a pipeline: the jobs of each rank over time, and its memory below them.

const JOB = 22, MEMORY = 56, BETWEEN = 16;
const KINDS = {
  F: ["plan", "plan", "forward pass"],
  B: ["backward solid", "backward", "backward pass"],
  I: ["backward solid", "backward", "gradients of inputs"],
  W: ["host", "host", "gradients of weights"],
};

const ui = {
  from: 0, to: 1, total: 1, axis: "time", gutter: 100,
  moved: () => {},
  axisText: (value) => formatTime(value, ui.unit),
};

const KEYS = { ...ZOOM_KEYS, Escape: hideTip };

function start() {
  const data = JSON.parse($("data").textContent);
  ui.unit = data.unit;
  ui.total = ui.to = Math.max(1, data.makespan);
  ui.ranks = data.ranks.map((raw) => readRank(raw, data.makespan));
  ui.plot = $("ranks");
  for (const part of document.querySelectorAll(".js")) part.hidden = false;
  fillLegend();
  listenToZoom([ui.plot]);
  dragToZoom(ui.plot, false);
  ui.plot.addEventListener("pointermove", (event) => {
    if (!event.buttons && inPlot(event)) showTip(event, tipAt(event));
    else hideTip();
  });
  listenToTheme();
  new ResizeObserver(redraw).observe($("tracks"));
  draw();
}

function readRank(raw, makespan) {
  const times = [...summed(raw.times), makespan], memory = summed(raw.memory);
  const top = 1.06 * (raw.budget <= raw.peak * 4 / 3 ? Math.max(raw.budget, raw.peak) : raw.peak);
  const starts = Float64Array.from(raw.pauses), ends = new Float64Array(starts.length);
  let end = 0;
  raw.durations.forEach((duration, job) => {
    starts[job] = end + raw.pauses[job];
    end = ends[job] = starts[job] + duration;
  });
  return { ...raw, times, memory, moments: memory.length, top: Math.max(1, top), starts, ends };
}

function fillLegend() {
  const kinds = new Set(ui.ranks.flatMap((rank) => rank.jobs.map(kindOf)));
  const swatch = (style, text) => element("li", style, text);
  $("legend").append(
    ...Object.keys(KINDS).filter((kind) => kinds.has(kind)).map((kind) => swatch(KINDS[kind][0], KINDS[kind][2])),
    ...(ui.ranks.some((rank) => rank.again.some(Boolean)) ? [swatch("again", "share that recomputes")] : []),
    swatch("idle", "idle"),
    swatch("budget", "budget"),
  );
}

const kindOf = (job) => /[FBIW]/.exec(job)[0];
const topOf = (number) => 4 + number * (JOB + MEMORY + BETWEEN);

function draw() {
  cancelAnimationFrame(drawing);
  drawing = 0;
  const width = ui.plot.clientWidth, height = topOf(ui.ranks.length) + AXIS;
  ui.gutter = Math.min(210, Math.max(86, width * 0.13));
  ui.scale = scaleOf(ui.gutter, width - ui.gutter - GAP, ui.from, ui.to);
  const context = prepared(ui.plot, width, height);
  ui.ranks.forEach((rank, number) => {
    drawJobs(context, rank, topOf(number));
    drawRankMemory(context, rank, topOf(number) + JOB + 3);
    gutterText(context, ui, `rank ${number}`, topOf(number) + JOB / 2, ui.colours.text);
    gutterText(context, ui, formatBytes(rank.peak), topOf(number) + JOB + MEMORY / 2 - 7, ui.colours.plan);
    gutterText(context, ui, `of ${formatBytes(rank.budget)}`, topOf(number) + JOB + MEMORY / 2 + 7, ui.colours.quiet);
  });
  drawAxis(context, ui, height);
  tellRange();
}

function drawJobs(context, rank, top) {
  const { scale, colours } = ui, end = scale.left + scale.width;
  context.fillStyle = colours.grid;
  context.fillRect(scale.left, top, scale.width, JOB);
  rank.jobs.forEach((job, number) => {
    const from = Math.max(scale.left, scale.x(rank.starts[number])), to = Math.min(end, scale.x(rank.ends[number]));
    if (to <= scale.left || from >= end) return;
    const wide = Math.max(1, to - from - (to - from > 4 ? 1 : 0));
    context.fillStyle = colours[KINDS[kindOf(job)][1]];
    context.fillRect(from, top, wide, JOB);
    const share = rank.again[number] / Math.max(1, rank.durations[number]);
    if (share > 0) {
      context.fillStyle = colours.again;
      context.fillRect(from, top + JOB - 4, Math.max(1, wide * share), 4);
    }
    if (wide < 7 * job.length) return;
    context.font = `11px ${colours.mono}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillStyle = colours.card;
    context.fillText(job, from + wide / 2, top + JOB / 2 - (share > 0 ? 1 : 0));
  });
}

function drawRankMemory(context, rank, top) {
  const { scale, colours } = ui, bottom = top + MEMORY;
  const y = (size) => bottom - size / rank.top * MEMORY;
  context.fillStyle = colours.grid;
  context.fillRect(scale.left, bottom, scale.width, 1);
  drawArea(context, memoryColumns(rank, rank.times, scale), scale, y, bottom, colours["plan-fill"], colours.plan);
  if (rank.budget <= rank.top) drawBudget(context, ui, y(rank.budget));
}

/** What the mouse says: the job of the rank at this time, or that it waits, and the rank's memory. */
function tipAt(event) {
  const y = event.clientY - ui.plot.getBoundingClientRect().top;
  const number = ui.ranks.findIndex((_, each) => y >= topOf(each) && y < topOf(each) + JOB + MEMORY + 3);
  if (number < 0) return [];
  const rank = ui.ranks[number], value = ui.scale.value(offsetOf(event));
  const job = rank.starts.findIndex((start, each) => start <= value && value < rank.ends[each]);
  const facts = [];
  if (job >= 0) {
    const [chunk, microbatch] = rank.jobs[job].split(/[FBIW]/);
    facts.push(["pass", KINDS[kindOf(rank.jobs[job])][2]], ["microbatch", microbatch], ["chunk", chunk]);
    facts.push(["from", `${ui.axisText(rank.starts[job])} to ${ui.axisText(rank.ends[job])}`]);
    if (rank.again[job]) facts.push(["recomputes", ui.axisText(rank.again[job])]);
  }
  facts.push(["memory", `${formatBytes(rank.memory[momentAt(rank.times, value)])} of ${formatBytes(rank.budget)}`]);
  return [element("div", "name", `rank ${number}: ${job < 0 ? "idle" : rank.jobs[job]}`), factList(facts)];
}

start();
