// What happened, in words: the story of a tensor, and what is going on in a moment.

function opAt(run, graph, moment) {
  return graph.opNames[run.subject[moment]];
}

/** The op that ran in a moment or, where none did, the last one before; "" before the first. */
function opUpTo(run, graph, moment) {
  while (moment >= 0 && run.doing[moment] > RERUN) moment--;
  return moment < 0 ? "" : opAt(run, graph, moment);
}

function when(run, graph, moment) {
  const step = moment < run.moments ? `step ${grouped(run.steps[moment])}` : "the end";
  return run.times[run.moments] ? `${step} · ${formatTime(run.times[moment], graph.unit)}` : step;
}

/** When something went: it is gone from a moment on, so the step before it was the last to have it. */
function whenGone(run, graph, end) {
  const after = `after step ${grouped(run.steps[end - 1])}`;
  return run.times[run.moments] ? `${after} · ${formatTime(run.times[end], graph.unit)}` : after;
}

function arrivalOf(run, graph, tensor, stay) {
  const moment = run.start[stay], op = graph.opNames[graph.producer[tensor]];
  const reader = run.firstRead[stay];
  switch (run.arrival[stay]) {
    case GIVEN:
      return "A graph input: there from start to end.";
    case MADE:
      return `Made by ${op}.`;
    case FETCHED:
      return reader < 0 ? "Brought back from the host." : `Brought back from the host for ${opAt(run, graph, reader)}.`;
  }
  const cost = graph.opTime[graph.producer[tensor]];
  const again = `Recomputed: ${op} runs again${cost ? ` (${formatTime(cost, graph.unit)})` : ""}`;
  if (reader < 0) return `${again}; what it makes beside this was wanted.`;
  const served = run.served[moment];
  const last = served >= 0 && served !== reader && run.doing[reader] === RERUN;
  return `${again} for ${opAt(run, graph, reader)}${last ? `, in the end for ${opAt(run, graph, served)}` : ""}.`;
}

function departureOf(run, graph, tensor, stay) {
  const end = run.end[stay], comesBack = stay + 1 < run.first[tensor + 1];
  if (end === run.moments) return graph.outputs.has(tensor) ? "Stays to the end: an output." : "Stays to the end.";
  const reader = run.lastRead[stay];
  if (run.takenOver[stay]) {
    const taker = opAt(run, graph, end);
    return comesBack ? `Dropped: ${taker} works in place on its storage.` : `${taker} takes over its storage.`;
  }
  const after = opUpTo(run, graph, end - 1);
  if (!comesBack) return reader < 0 ? `Freed: nothing reads it.` : `Freed: ${opAt(run, graph, reader)} was the last to read it.`;
  const how = run.offload[stay] >= 0 ? "Dropped, with its copy on the host," : "Dropped";
  return `${how} after ${after}. ${whyDropped(run, graph, tensor, stay)}`;
}

/** What memory would have come to, had the tensor stayed and nothing else changed. */
function whyDropped(run, graph, tensor, stay) {
  const next = run.start[stay + 1], fullest = run.fullest[stay];
  const away = run.times[run.moments] ? ` for ${formatTime(run.times[next] - run.times[run.end[stay]], graph.unit)}` : "";
  if (fullest < 0) return "It comes back at once.";
  const least = run.memory[fullest] + graph.bytes[tensor], limit = graph.budget ?? run.memory[run.peak];
  const at = opUpTo(run, graph, fullest);
  const over = least - limit, than = graph.budget === null ? "peak" : "budget";
  if (over <= 0) {
    return `Away${away}. By itself it could have stayed: memory while it is away reaches ${formatBytes(run.memory[fullest])}.`;
  }
  return `Away${away}. Had it stayed, memory at ${at} would be ${formatBytes(least)}: ${formatBytes(over)} over the ${than}.`;
}

/** All that happens to a tensor, in order: [class, when, what]. */
function storyOf(run, graph, tensor) {
  const story = [];
  for (let stay = run.first[tensor]; stay < run.first[tensor + 1]; stay++) story.push(...storyOfStay(run, graph, tensor, stay));
  return story;
}

function storyOfStay(run, graph, tensor, stay) {
  const arrival = run.arrival[stay], style = ["made", "again", "host", "given"][arrival];
  const story = [[style, when(run, graph, run.start[stay]), arrivalOf(run, graph, tensor, stay)]];
  if (arrival === GIVEN) return [[style, "", story[0][2]]];
  if (run.offload[stay] >= 0) story.push(["host", when(run, graph, run.offload[stay]), "Its copy to the host begins."]);
  const end = run.end[stay];
  story.push(["gone", end === run.moments ? "" : whenGone(run, graph, end), departureOf(run, graph, tensor, stay)]);
  return story;
}

/** What is going on in a moment. */
function doingAt(run, graph, moment) {
  const subject = run.subject[moment];
  switch (run.doing[moment]) {
    case OFFLOAD:
      return `copying ${graph.names[subject]} to the host begins`;
    case PREFETCH:
      return `copying ${graph.names[subject]} back begins`;
    case WAIT:
      return `waiting for the copy of ${graph.names[subject]}`;
    case RERUN: {
      const served = run.served[moment];
      return `${graph.opNames[subject]} again${served < 0 ? "" : `, for ${graph.opNames[run.subject[served]]}`}`;
    }
  }
  return graph.opNames[subject];
}
