"use strict";
const $ = (selector) => document.querySelector(selector);
const parse = (id) => JSON.parse(document.getElementById(id).textContent);
const page = parse("page");
const { cases, filters } = page;

// ---------------------------------------------------------------- numbers with units

const known = (x) => typeof x === "number" && Number.isFinite(x);
const significant = (x, digits = 3) => (x === 0 ? "0" : Math.abs(x) >= 10 ** digits ? String(Number(x.toPrecision(digits))) : x.toPrecision(digits));
const scaled = (x, steps) => { const [scale, unit] = steps.find(([s]) => Math.abs(x) >= 0.9995 * s) || steps.at(-1); return `${significant(x / scale)} ${unit}`; };
const or = (f) => (x) => (known(x) ? f(x) : "–");
const time = or((x) => scaled(x, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]));
const bytes = or((x) => scaled(x, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]));
const count = or((x) => scaled(x, [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]).trim());
const factor = or((x) => `${significant(x)}×`);
const share = or((x) => `${significant(100 * x)} %`);
const escape = (s) => String(s).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const words = (s) => s.replaceAll("_", " ");
const plural = (n, one, many = one + "s") => `${n} ${n === 1 ? one : many}`;
const between = (f, low, high) => (known(low) && known(high) ? `${f(low)} – ${f(high)}` : "");

// ---------------------------------------------------------------- columns

const colours = page.colours;
const swatch = (c) => `<span class="swatch" style="--colour:${colours[c.target === "torch" ? "PyTorch" : c.variant] || "#888"}"></span>`;
const fair = (r) => known(r) && Math.max(r, 1 / r) <= page.fair;
const verdict = (c) => (c.status === "measured" ? `${c.valid_samples} of ${c.taken_samples}` : `<span class="bad">${words(c.status)}</span>`);
const against = (c) => known(c.speedup)
  ? `<span class="${c.speedup_low >= 1 ? "good" : c.speedup_high < 1 ? "bad" : ""}">${factor(c.speedup)}</span><small>${known(c.speedup_low) ? `${significant(c.speedup_low)}–${significant(c.speedup_high)}` : ""}</small>` : "–";
const arranged = new Set(cases.map((c) => c.arrangement)).size > 1; // worth showing when they differ
const others = (c) => [...c.label.split(" ").filter((part) => !/^n=/.test(part)), ...(arranged ? [c.arrangement.replace(/^threads=(\d+)/, "$1 thr")] : [])].join(" ");
const columns = [
  { key: "kernel", label: "kernel", cell: (c) => `<a href="#case=${c.case}">${escape(c.kernel)}</a>`, kind: "title" },
  { key: "form", label: "form", kind: "word" },
  { key: "variant", label: "variant", cell: (c) => `<span class="name" title="${escape(c.variant)}">${swatch(c)}${escape(c.variant)}</span>`, kind: "word strong" },
  { key: "target", label: "target", kind: "word" },
  { key: "dtype", label: "dtype", kind: "word" },
  { key: "n", label: "n", cell: (c) => `<span class="at"><small>${escape(others(c))}</small> ${c.n ?? "–"}</span>`, kind: "number" },
  { key: "predicted_seconds", label: "predicted", cell: (c) => time(c.predicted_seconds), kind: "number" },
  { key: "median_seconds", label: "measured", cell: (c) => time(c.median_seconds), kind: "number" },
  { key: "predicted_over_measured", label: "ratio", cell: (c) => known(c.predicted_over_measured) ? `<span class="${fair(c.predicted_over_measured) ? "" : "fair"}">${significant(c.predicted_over_measured)}</span>` : "–", kind: "number" },
  { key: "speedup", label: "against PyTorch", cell: against, kind: "number" },
  { key: "peak_share", label: "of FMA peak", cell: (c) => share(c.peak_share), kind: "number" },
  { key: "valid_share", label: "valid samples", cell: verdict, kind: "number" },
];

// ---------------------------------------------------------------- state: filters, order, open case; kept in the address

const state = { q: "", sort: "", down: false, open: null, picked: Object.fromEntries(filters.map((f) => [f, ""])) };
let shown = [];
const haystack = cases.map((c) => [...filters.map((f) => c[f]), c.isa, c.label, c.arrangement, c.machine, c.explanation, c.dnf_hash, c.onf_hash].join(" ").toLowerCase());

function readAddress() {
  const hash = location.hash.slice(1);
  if (hash && !hash.includes("=")) return;
  const given = new URLSearchParams(hash);
  state.q = given.get("q") || "";
  for (const f of filters) state.picked[f] = given.get(f) || "";
  const sort = given.get("sort") || "";
  state.sort = sort.replace(/^-/, "");
  state.down = sort.startsWith("-");
  state.open = given.has("case") ? Number(given.get("case")) : null;
}

function writeAddress() {
  const out = new URLSearchParams();
  if (state.q) out.set("q", state.q);
  for (const f of filters) if (state.picked[f]) out.set(f, state.picked[f]);
  if (state.sort) out.set("sort", (state.down ? "-" : "") + state.sort);
  if (state.open !== null) out.set("case", state.open);
  const text = out.toString();
  history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
}

function select() {
  const asked = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  shown = cases.filter((c, i) => filters.every((f) => !state.picked[f] || c[f] === state.picked[f]) && asked.every((w) => haystack[i].includes(w)));
  if (state.sort) {
    const sign = state.down ? -1 : 1;
    const value = (c) => c[state.sort];
    shown.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === undefined || y === undefined) return (x === undefined) - (y === undefined); // unknown goes last, both ways
      return sign * (typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
    });
  }
}

// ---------------------------------------------------------------- table

const CHUNK = 150;
const body = $("table.cases tbody");
let drawn = 0;

function drawHead() {
  $("table.cases thead tr").innerHTML = columns.map((c) => {
    const sorted = state.sort === c.key ? ` aria-sort="${state.down ? "descending" : "ascending"}"` : "";
    return `<th scope="col" class="${c.kind || ""}"${sorted}><button type="button" data-sort="${c.key}">${c.label}</button></th>`;
  }).join("");
}

function row(c) {
  return `<tr data-case="${c.case}">` + columns.map((k) => `<td class="${k.kind || ""}" data-label="${k.label}"><span>${k.cell ? k.cell(c) : escape(c[k.key])}</span></td>`).join("") + "</tr>";
}

function more() {
  body.insertAdjacentHTML("beforeend", shown.slice(drawn, drawn + CHUNK).map(row).join(""));
  drawn = Math.min(drawn + CHUNK, shown.length);
  $("#more").hidden = drawn >= shown.length;
  $("#more").textContent = `Show more (${shown.length - drawn} left)`;
}

function drawTable() {
  body.innerHTML = "";
  drawn = 0;
  more();
  $("#none").hidden = shown.length > 0;
  $("#count").textContent = shown.length === cases.length ? plural(cases.length, "case") : `${shown.length} of ${plural(cases.length, "case")}`;
}

function drawFilters() {
  $("#q").value = state.q;
  for (const f of filters) {
    const box = document.querySelector(`select[data-filter="${f}"]`);
    box.value = state.picked[f];
    box.classList.toggle("set", Boolean(state.picked[f]));
  }
  $("#sort").value = state.sort ? (state.down ? "-" : "") + state.sort : "";
  $("#reset").hidden = !(state.q || filters.some((f) => state.picked[f]));
}

function update() {
  select();
  drawFilters();
  drawHead();
  drawTable();
  writeAddress();
  charts.filter();
}

// ---------------------------------------------------------------- one case

const dialog = $("dialog");

function samplesPlot(c) {
  if (!c.samples.length) return "";
  const [w, h, left, top, bottom] = [660, 190, 64, 14, 22];
  const good = c.samples.flat().filter((s) => s[2] === "valid").map((s) => s[1]);
  const range = good.length ? good : c.samples.flat().map((s) => s[1]);
  let [low, high] = [Math.min(...range), Math.max(...range)];
  const margin = (high - low) * 0.12 || high * 0.01;
  [low, high] = [low - margin, high + margin];
  const y = (s) => top + (h - top - bottom) * (1 - (Math.min(Math.max(s, low), high) - low) / (high - low));
  const step = (w - left - 14) / c.samples.length;
  const most = Math.max(...c.samples.flat().map((s) => s[0])) + 1;
  let marks = "";
  c.samples.forEach((launch, k) => {
    const from = left + k * step;
    if (k) marks += `<line class="gap" x1="${from}" x2="${from}" y1="${top}" y2="${h - bottom}"/>`;
    marks += `<text x="${from + step / 2}" y="${h - 7}" text-anchor="middle">launch ${k + 1}</text>`;
    for (const [index, s, word] of launch) {
      const [x, at] = [from + 8 + (step - 16) * (index + 0.5) / most, y(s)];
      const title = `<title>sample ${index + 1}: ${time(s)}, ${words(word)}</title>`;
      marks += word === "valid" ? `<circle class="dot" cx="${x}" cy="${at}" r="3">${title}</circle>` : `<path class="bad" d="M${x - 3.4} ${at - 3.4}l6.8 6.8m0 -6.8l-6.8 6.8">${title}</path>`;
    }
  });
  let guides = "";
  if (known(c.median_seconds_low)) guides += `<rect class="band" x="${left}" width="${w - left - 14}" y="${y(c.median_seconds_high)}" height="${Math.max(1, y(c.median_seconds_low) - y(c.median_seconds_high))}"/>`;
  if (known(c.median_seconds)) guides += `<line class="median" x1="${left}" x2="${w - 14}" y1="${y(c.median_seconds)}" y2="${y(c.median_seconds)}"/>`;
  const ticks = [low + margin, (low + high) / 2, high - margin].map((s) => `<text x="${left - 8}" y="${y(s) + 4}" text-anchor="end">${time(s)}</text>`).join("");
  const tally = {};
  for (const s of c.samples.flat()) if (s[2] !== "valid") tally[s[2]] = (tally[s[2]] || 0) + 1;
  const bad = Object.entries(tally).map(([k, n]) => `${n} ${words(k)}`).join(", ");
  const kept = c.samples.flat().length;
  const thin = kept < c.taken_samples ? ` ${kept} of ${c.taken_samples} samples drawn.` : "";
  return `<h3>Samples</h3><svg class="samples" viewBox="0 0 ${w} ${h}" role="img" aria-label="Times of ${plural(c.taken_samples, "sample")} in ${plural(c.samples.length, "launch", "launches")}">${guides}${ticks}${marks}</svg>
    <p class="quiet">Dots: valid samples; line and band: their median and its 95 % interval.${bad ? ` Crosses: ${bad}; not used, drawn at the edge where they lie outside.` : ""}${thin}</p>`;
}

function parts(c) {
  if (!known(c.predicted_seconds)) return "";
  const rows = [["compute", c.predicted_compute_seconds, ""], ["memory", c.predicted_memory_seconds, ""], ["overhead", c.predicted_overhead_seconds, ""],
    ["predicted", c.predicted_seconds, "whole"], ["measured", c.median_seconds, "real"]].filter((r) => known(r[1]));
  const most = Math.max(...rows.map((r) => r[1]));
  return `<h3>Prediction, frozen before measuring</h3><div class="parts">` + rows.map(([name, s, kind]) => `<span>${name}</span><i class="${kind}" style="--share:${s / most}"></i><span>${time(s)}</span>`).join("") + "</div>";
}

function validation(c) {
  if (!known(c.error)) return "";
  const own = known(c.baseline_error) ? ` PyTorch's own error on the same inputs: ${c.baseline_error.toExponential(2)}.` : "";
  const bound = known(c.error_bound) ? ` ${share(c.error / c.error_bound)} of its bound ${c.error_bound.toExponential(2)}` : " without a bound";
  const link = c.links.validation ? ` <a href="${c.links.validation}">All checks</a>` : "";
  return `<h3>Validation</h3><p>Worst error ${c.error.toExponential(2)},${bound}.${own}${link}</p>`;
}

function counts(c) {
  if (!known(c.flops)) return "";
  const levels = ["L1", "L2", "L3"].filter((l) => known(c["traffic_bytes_" + l]) || known(c["lower_bound_bytes_" + l]));
  const head = `<tr><th>past</th><th>traffic</th><th>lower bound</th><th>ratio</th><th>achieved</th><th>ceiling</th></tr>`;
  const line = (l) => `<tr><td>${l}</td><td>${bytes(c["traffic_bytes_" + l])}</td><td>${bytes(c["lower_bound_bytes_" + l])}</td><td>${factor(c["traffic_ratio_" + l])}</td><td>${bytes(c["achieved_bandwidth_" + l])}/s</td><td>${bytes(c["bandwidth_" + l])}/s</td></tr>`;
  const items = [["operations executed", count(c.flops)], ["of the mathematics", count(c.useful_flops)], ["exponentials", count(c.exps)], ["loads", bytes(c.loaded_bytes)], ["stores", bytes(c.stored_bytes)],
    ["footprint read", bytes(c.footprint_read_bytes)], ["footprint written", bytes(c.footprint_written_bytes)], ["private scratch", bytes(c.private_bytes)]];
  return `<h3>Counts from the algebra</h3><dl class="figures">` + items.map(([k, v]) => `<div><dt>${k}</dt><dd>${v}</dd></div>`).join("") + "</dl>" +
    (levels.length ? `<h3>Traffic</h3><table class="plain">${head}${levels.map(line).join("")}</table>` : "");
}

function figures(c) {
  const item = (name, value, small = "") => `<div><dt>${name}</dt><dd>${value}<small>${small}</small></dd></div>`;
  return `<dl class="figures">` + [
    item("measured", time(c.median_seconds), between(time, c.median_seconds_low, c.median_seconds_high)),
    item("predicted", time(c.predicted_seconds), known(c.predicted_over_measured) ? `${significant(c.predicted_over_measured)} of measured` : c.target === "torch" ? "PyTorch is not derived" : ""),
    item("against PyTorch", factor(c.speedup), between(factor, c.speedup_low, c.speedup_high)),
    item("operations", known(c.flop_rate) ? `${significant(c.flop_rate / 1e9)} GFLOP/s` : "–", known(c.peak_share) ? `${share(c.peak_share)} of the measured FMA peak` : ""),
    item("grows with n as", known(c.exponent) ? `n<sup>${c.exponent.toFixed(2)}</sup>` : "–", known(c.exponent) ? "locally" : ""),
    item("valid samples", c.taken_samples ? `${c.valid_samples} of ${c.taken_samples}` : "–", known(c.valid_share) ? share(c.valid_share) : ""),
    item("differs", known(c.process_scatter) ? share(c.process_scatter) : "–", ["within a process", ...[[c.launch_scatter, "between launches"], [c.node_scatter, "between nodes"]]
      .filter(([found]) => known(found)).map(([found, where]) => `${share(found)} ${where}`)].join(", ")),
    ...c.mechanism ? [item(c.plausibility === "implausible" ? "implausible" : "slow because", words(c.mechanism), c.plausibility === "implausible" ? "no placement of pages makes a penalty that large here" : "")] : [],
  ].join("") + "</dl>";
}

function drawCase() {
  const c = cases[state.open];
  if (!c) { if (dialog.open) dialog.close(); return; }
  const at = shown.indexOf(c);
  const hashes = c.dnf_hash ? `<p class="quiet">Normal form <code>${escape(c.dnf_hash)}</code>, loop nest <code>${escape(c.onf_hash)}</code></p>` : "";
  dialog.innerHTML = `<div class="head"><div><h2>${swatch(c)}${escape(c.kernel)} · ${escape(c.form)} · ${escape(c.variant)}</h2>
      <p>${escape([c.target, c.isa, c.dtype].join(" · "))} — ${escape(c.label)}, ${plural(c.threads, "thread")}</p></div>
    <div class="keys"><button class="button" data-step="-1" aria-label="Previous case"${at > 0 ? "" : " disabled"}>←</button><button class="button" data-step="1" aria-label="Next case"${at >= 0 && at < shown.length - 1 ? "" : " disabled"}>→</button><button class="button" data-close aria-label="Close">✕</button></div></div>
    <div class="body">${c.explanation ? `<p class="notice"><b class="bad">Not measured.</b> ${escape(c.explanation)}</p>` : ""}
    <ul class="links">${Object.entries(c.links).map(([name, to]) => `<li><a href="${escape(encodeURI(to))}">${name}</a></li>`).join("")}</ul>
    ${figures(c)}${parts(c)}${samplesPlot(c)}${validation(c)}${counts(c)}${hashes}</div>`;
  if (!dialog.open) dialog.showModal();
  dialog.focus();
  dialog.scrollTop = 0;
}

function open(index) {
  state.open = index;
  writeAddress();
  drawCase();
}

// ---------------------------------------------------------------- charts, drawn when they come into view

const charts = {
  views: new Map(),
  dark: () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark",
  look() {
    const css = getComputedStyle(document.documentElement);
    const get = (name) => css.getPropertyValue(name).trim();
    const [ink, quiet, line] = [get("--ink"), get("--quiet"), get("--line")];
    return { background: null, padding: 4, view: { stroke: line }, title: { color: ink }, header: { labelColor: ink }, style: { "group-title": { fill: ink } },
      axis: { labelColor: quiet, titleColor: ink, gridColor: line, domainColor: quiet, tickColor: line }, legend: { labelColor: ink, titleColor: ink, symbolBaseFillColor: quiet, symbolBaseStrokeColor: quiet } };
  },
  fit(document, room) {
    const wide = room > 760;
    const columns = Math.max(1, Math.min(3, Math.floor((room - (wide ? 150 : 0)) / 330)));
    const width = columns === 1 ? Math.min(420, room - 100) : Math.min(300, Math.floor((room - (wide ? 150 : 0)) / columns) - 82);
    const walk = (node) => {
      if (Array.isArray(node)) return node.forEach(walk);
      if (!node || typeof node !== "object") return;
      if (typeof node.width === "number") node.width = width;
      if (node.title && typeof node.title === "object" && node.title.color) delete node.title.color;
      for (const [key, child] of Object.entries(node)) if (key !== "datasets" && key !== "encoding") walk(child);
    };
    walk(document);
    if ("columns" in document) document.columns = columns;
    document.config.legend = { ...document.config.legend, orient: wide ? "right" : "bottom", columns: wide ? 1 : room > 500 ? 3 : 2 };
    return document;
  },
  merge: (a, b) => Object.fromEntries([...new Set([...Object.keys(a), ...Object.keys(b)])].map((k) => [k, a[k] && b[k] && typeof a[k] === "object" && typeof b[k] === "object" ? charts.merge(a[k], b[k]) : k in b ? b[k] : a[k]])),
  // Only the rows of the cases that are shown, and only panels that have some; null when none has.
  narrow(document) {
    const visible = new Set(shown.map((c) => c.case));
    const rows = (document.datasets || {}).rows || [];
    const panels = new Set(rows.filter((r) => visible.has(r.case)).map((r) => r.panel));
    if (rows.length && !panels.size) return null;
    if (!rows.length) return document;
    document.datasets.rows = rows.filter((r) => ("case" in r ? visible.has(r.case) : panels.has(r.panel)));
    if (document.concat) {
      const title = (part) => (part.title || part.vconcat[0].title).text;
      document.concat = document.concat.filter((part) => panels.has(title(part)));
      document.params[0].views = [JSON.stringify(document.concat[0]).match(/"name":"(points[^"]*)"/)[1]];
    }
    return document;
  },
  async draw(figure) {
    const name = figure.dataset.chart;
    const canvas = figure.querySelector(".canvas > div");
    if (this.views.has(name)) this.views.get(name).finalize();
    this.views.delete(name);
    const document = this.narrow(parse("chart-" + name));
    if (!document) { canvas.innerHTML = `<p class="empty">None of the cases that are left has what this chart shows.</p>`; return; }
    this.fit(document, figure.querySelector(".canvas").clientWidth - 30);
    document.config = this.merge(document.config, this.look());
    const result = await vegaEmbed(canvas, document, { renderer: "svg", actions: { export: true, source: false, compiled: false, editor: false }, tooltip: { theme: this.dark() ? "dark" : "light" }, downloadFileName: name });
    result.view.addEventListener("click", (_, item) => { const found = item && item.datum && item.datum.case; if (known(found)) open(found); });
    this.views.set(name, result);
    figure.dataset.drawn = "yes";
  },
  redraw() { for (const figure of document.querySelectorAll("[data-chart]")) { watcher.unobserve(figure); watcher.observe(figure); } },
  later: 0,
  filter() { clearTimeout(this.later); this.later = setTimeout(() => this.redraw(), 200); },
};

const watcher = new IntersectionObserver((entries) => {
  for (const e of entries) if (e.isIntersecting) { watcher.unobserve(e.target); charts.draw(e.target); }
}, { rootMargin: "300px" });

// ---------------------------------------------------------------- events

for (const f of filters) {
  const values = [...new Set(cases.map((c) => c[f]))].sort();
  const box = document.querySelector(`select[data-filter="${f}"]`);
  box.innerHTML = `<option value="">${f}: all</option>` + values.map((v) => `<option value="${escape(v)}">${escape(words(v))}</option>`).join("");
  box.addEventListener("change", () => { state.picked[f] = box.value; update(); });
}
$("#sort").innerHTML = `<option value="">sort by</option>` + columns.flatMap((c) => [["", "↑"], ["-", "↓"]].map(([sign, arrow]) => `<option value="${sign}${c.key}">${c.label} ${arrow}</option>`)).join("");
$("#sort").addEventListener("change", (e) => { state.sort = e.target.value.replace(/^-/, ""); state.down = e.target.value.startsWith("-"); update(); });
$("#q").addEventListener("input", (e) => { state.q = e.target.value; update(); });
$("#reset").addEventListener("click", () => { state.q = ""; for (const f of filters) state.picked[f] = ""; update(); });
$("#more").addEventListener("click", more);
$("table.cases thead").addEventListener("click", (e) => {
  const key = e.target.dataset.sort;
  if (!key) return;
  if (state.sort !== key) [state.sort, state.down] = [key, false];
  else if (!state.down) state.down = true;
  else [state.sort, state.down] = ["", false];
  update();
  document.querySelector(`[data-sort="${key}"]`).focus();
});
body.addEventListener("click", (e) => {
  const line = e.target.closest("tr");
  if (line && !getSelection().toString()) { e.preventDefault(); open(Number(line.dataset.case)); }
});
dialog.addEventListener("click", (e) => {
  if (e.target === dialog || e.target.closest("[data-close]")) return dialog.close();
  const step = e.target.closest("[data-step]");
  if (step) move(Number(step.dataset.step));
});
function move(by) {
  const next = shown[shown.indexOf(cases[state.open]) + by];
  if (next) open(next.case);
}
dialog.addEventListener("keydown", (e) => { if (e.key === "ArrowLeft") move(-1); if (e.key === "ArrowRight") move(1); });
dialog.addEventListener("close", () => { state.open = null; writeAddress(); });
for (const link of document.querySelectorAll("[data-status]")) link.addEventListener("click", () => { state.q = link.dataset.status.replaceAll("…", " "); update(); });
const theme = $("#theme");
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = charts.dark() ? "light" : "dark";
  charts.redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.redraw());
let room = innerWidth;
addEventListener("resize", () => { if (Math.abs(innerWidth - room) > 60) { room = innerWidth; charts.redraw(); } });
addEventListener("hashchange", () => { if (location.hash.includes("=")) { readAddress(); update(); drawCase(); } });

readAddress();
update();
drawCase();
