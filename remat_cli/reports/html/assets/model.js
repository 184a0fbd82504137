// The page's data taken apart into flat arrays. All that happens to tensors is told in moments: the steps of a schedule
// that are no frees. -1 stands for what there is none of.

const FIRST_RUN = 0, RERUN = 1, OFFLOAD = 2, PREFETCH = 3, WAIT = 4;
const MADE = 0, RECOMPUTED = 1, FETCHED = 2, GIVEN = 3;

function readGraph({ ops, tensors, fixed }, { unit, budget }) {
  return {
    unit,
    budget,
    fixed,
    opNames: ops.names,
    opTypes: ops.type.map((type) => ops.types[type]),
    opTime: ops.time,
    backward: ops.backward,
    names: tensors.names.map((name, tensor) => name === 0 ? ops.names[tensors.op[tensor]] : name),
    bytes: Float64Array.from(tensors.bytes),
    kinds: tensors.kind.map((kind) => tensors.kinds[kind]),
    producer: tensors.op,
    outputs: new Set(tensors.outputs),
  };
}

function readRun(raw, graph) {
  const moments = raw.doing.length, tensors = graph.names.length;
  const ends = new Float64Array(moments + 1);
  raw.durations.forEach((duration, moment) => { ends[moment + 1] = ends[moment] + duration; });
  const run = {
    label: raw.label,
    graph,
    moments,
    doing: raw.doing,
    subject: raw.subject,
    steps: summed(raw.steps),
    memory: summed(raw.memory),
    times: ends,
    indices: Float64Array.from({ length: moments + 1 }, (_, moment) => moment),
    served: new Int32Array(moments).fill(-1),
    link: raw.link.map(readQueue),
    ...readStays(raw.stays, tensors, moments),
  };
  let reruns = 0;
  raw.doing.forEach((doing, moment) => {
    if (doing !== RERUN) return;
    const distance = raw.served[reruns++];
    if (distance) run.served[moment] = moment + distance;
  });
  run.peak = 0;
  run.memory.forEach((size, moment) => { if (size > run.memory[run.peak]) run.peak = moment; });
  run.cost = makingAgain(run, graph);
  return run;
}

/** The transfers of one queue of the link, which follow each other: when each begins and ends, and its tensor. */
function readQueue({ label, transfers }) {
  const queue = { label, start: [], end: [], tensor: [] };
  for (let at = 0, end = 0; at < transfers.length; at += 3) {
    queue.start.push(end + transfers[at]);
    end += transfers[at] + transfers[at + 1];
    queue.end.push(end);
    queue.tensor.push(transfers[at + 2]);
  }
  return queue;
}

/** The transfer of a queue that goes on at a time; -1 where there is none. */
function transferAt(queue, time) {
  return queue.start.findIndex((start, each) => start <= time && time < queue.end[each]);
}

/** Where a time is on an axis that numbers moments. */
function momentOf(run, time) {
  const moment = momentAt(run.times, time), takes = run.times[moment + 1] - run.times[moment];
  return moment + (takes > 0 ? Math.min(1, (time - run.times[moment]) / takes) : 0);
}

function summed(differences) {
  let sum = 0;
  return Float64Array.from(differences, (difference) => (sum += difference));
}

/** The stays of tensor t are those from first[t] up to first[t + 1]; a graph input has one, from start to end. */
function readStays(flat, tensors, moments) {
  const first = new Int32Array(tensors + 1);
  const columns = { start: [], end: [], arrival: [], takenOver: [], firstRead: [], lastRead: [], offload: [], fullest: [] };
  for (let tensor = 0, at = 0; tensor < tensors; tensor++) {
    const stays = flat[at++];
    for (let number = 0, before = 0; number < stays; number++, at += 7) {
      const start = before + flat[at], end = start + flat[at + 1], read = flat[at + 3];
      columns.start.push(start);
      columns.end.push(end);
      columns.arrival.push(flat[at + 2] & 3);
      columns.takenOver.push(flat[at + 2] >> 2);
      columns.firstRead.push(read ? start + read : -1);
      columns.lastRead.push(read ? start + read + flat[at + 4] : -1);
      columns.offload.push(flat[at + 5] ? start + flat[at + 5] : -1);
      columns.fullest.push(flat[at + 6] ? end + flat[at + 6] - 1 : -1);
      before = end;
    }
    if (!stays) {
      for (const [name, values] of Object.entries(columns)) {
        values.push(name === "start" || name === "takenOver" ? 0 : name === "end" ? moments : name === "arrival" ? GIVEN : -1);
      }
    }
    first[tensor + 1] = columns.start.length;
  }
  return { first, ...Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, Int32Array.from(values)])) };
}

/** For each tensor, the time of the runs that make it again. */
function makingAgain(run, graph) {
  return Float64Array.from(graph.names, (_, tensor) => {
    let time = 0;
    for (let stay = run.first[tensor]; stay < run.first[tensor + 1]; stay++) {
      if (run.arrival[stay] === RECOMPUTED) time += graph.opTime[graph.producer[tensor]];
    }
    return time;
  });
}

const FATES = ["kept", "recomputed", "offloaded", "graph input"];

function fateOf(run, tensor) {
  let fate = "kept";
  for (let stay = run.first[tensor]; stay < run.first[tensor + 1]; stay++) {
    if (run.arrival[stay] === GIVEN) return "graph input";
    if (run.arrival[stay] === FETCHED) return "offloaded";
    if (run.arrival[stay] === RECOMPUTED) fate = "recomputed";
  }
  return fate;
}

/** The moment that covers `x` on an axis: the last one that begins there or before. */
function momentAt(edges, x) {
  let low = 0, high = edges.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (edges[middle] <= x) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The stay of a tensor at a moment; -1 where it is not in memory. */
function stayAt(run, tensor, moment) {
  for (let stay = run.first[tensor]; stay < run.first[tensor + 1]; stay++) {
    if (run.start[stay] <= moment && moment < run.end[stay]) return stay;
  }
  return -1;
}

/** The largest tensors in memory at a moment, the largest first. */
function largestAt(run, graph, moment, most) {
  const found = [];
  for (let tensor = 0; tensor < graph.names.length; tensor++) {
    const size = graph.bytes[tensor];
    if (size > 0 && (found.length < most || size > graph.bytes[found[found.length - 1]]) && stayAt(run, tensor, moment) >= 0) {
      found.push(tensor);
      found.sort((a, b) => graph.bytes[b] - graph.bytes[a]);
      found.length = Math.min(found.length, most);
    }
  }
  return found;
}
