"use strict";
// Sizes, times and shares as remat_cli/units.py writes them; a test holds one against the other.

function grouped(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
}

function formatBytes(size) {
  const magnitude = Math.abs(size), sign = size < 0 ? "-" : "";
  for (const [unit, factor] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (magnitude >= factor * 0.99995) {
      const value = magnitude / factor;
      return `${sign}${value.toFixed(value < 9.9995 ? 3 : value < 99.995 ? 2 : 1)} ${unit}`;
    }
  }
  return `${sign}${Math.round(magnitude)} B`;
}

/** Four digits, without zeros at the end. */
function short(value) {
  return String(Number(value.toPrecision(4)));
}

function formatTime(time, unit) {
  if (unit === "ns") {
    for (const [name, factor] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
      if (time >= factor * 0.99995) {
        const value = time / factor;
        return `${value < 9999 ? short(value) : grouped(value)} ${name}`;
      }
    }
    return `${Math.round(time)} ns`;
  }
  if (unit === "flop") {
    for (const [name, factor] of [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6]]) {
      if (time >= factor) return `${short(time / factor)} ${name}FLOP`;
    }
  }
  return `${grouped(time)} ${unit === "flop" ? "FLOP" : ""}`.trimEnd();
}

function formatShare(share) {
  const percent = share * 100;
  if (percent === 0) return "0 %";
  if (Math.abs(percent) < 0.001) return `${percent.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2")} %`;
  return `${percent.toFixed(Math.abs(percent) < 1 ? 3 : Math.abs(percent) < 100 ? 2 : 1)} %`;
}

function count(number, one, many) {
  return `${grouped(number)} ${number === 1 ? one : many}`;
}
