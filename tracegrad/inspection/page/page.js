// The page of a traced function: draws the data that Python embedded (model.py) and links it.
// A "pick" is what the reader points at: {kind: "line" | "node" | "box" | "step" | "kernel" | "slot", i: its number}.
// `linked` says what a pick has to do with, `light` shows it everywhere. All text goes through textContent: none of it is read as HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const app = document.getElementById("app");
  let program = null;            // the compilation that is shown
  let fold = "line";             // what the graph's boxes are
  let open = new Set();          // the boxes whose operations are shown
  let pinned = null;             // the pick that was clicked
  let view = { x: 0, y: 0, k: 1 };
  let shown = null;              // elements of what is shown, by kind and number: see `register`
  let lit = [];

  // ---------------------------------------------------------------------------------------------------------- elements

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    element.append(...children.flat());
    return element;
  }
  const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const s = (tag, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  function register(kind, i, element) {
    if (!shown[kind].has(i)) shown[kind].set(i, []);
    shown[kind].get(i).push(element);
    element.dataset.kind = kind;
    element.dataset.i = i;
    return element;
  }

  // ----------------------------------------------------------------------------------------------------------- numbers

  function scaled(n, step, units) {
    let power = 0;
    while (n >= step && power < units.length - 1) { n /= step; power += 1; }
    return `${n.toFixed(power ? 1 : 0)} ${units[power]}`;
  }
  const bytes = (n) => scaled(n, 1024, ["B", "KiB", "MiB", "GiB"]);
  const flops = (n) => scaled(n, 1000, ["flop", "kflop", "Mflop", "Gflop"]);
  const seconds = (n) => n >= 1 ? `${n.toFixed(2)} s` : n >= 1e-3 ? `${(1e3 * n).toFixed(2)} ms` : `${(1e6 * n).toFixed(1)} us`;
  const percent = (n) => `${Math.round(100 * n)} %`;
  const count = (n, one, many) => `${n} ${n === 1 ? one : many || one + "s"}`;
  const sum = (items) => items.reduce((a, b) => a + b, 0);

  function lineName(i) {
    const line = program.lines[i];
    return line ? `${program.files.names[line.file]}:${line.line}` : "no line";
  }

  // ------------------------------------------------------------------------------------------------------------- links

  function linked(pick) {
    const found = { line: new Set(), node: new Set(), step: new Set(), kernel: new Set(), slot: new Set() };
    const add = (kind, numbers) => { for (const i of numbers) if (i >= 0) found[kind].add(i); };
    const p = program;
    if (pick.kind === "line") {
      const line = p.lines[pick.i];
      add("line", [pick.i]); add("node", line.nodes); add("step", line.steps); add("kernel", line.kernels); add("slot", line.slots);
      return found;
    }
    if (pick.kind === "node" || pick.kind === "box") {
      const nodes = pick.kind === "node" ? [pick.i] : p.folds[fold].boxes[pick.i].nodes;
      add("node", nodes);
      for (const n of nodes) { add("line", [p.nodes[n].line]); add("step", p.nodes[n].steps); }
      for (const i of found.step) for (const slot of p.steps[i].slots) if (found.line.has(p.slots[slot].line)) add("slot", [slot]);
    } else if (pick.kind === "step") {
      const step = p.steps[pick.i];
      add("step", [pick.i]); add("line", step.lines); add("node", step.nodes); add("slot", step.slots);
    } else if (pick.kind === "kernel") {
      const kernel = p.kernels[pick.i];
      add("kernel", [pick.i]); add("line", kernel.lines); add("step", kernel.steps);
      for (const i of kernel.steps) { add("node", p.steps[i].nodes); add("slot", p.steps[i].slots); }
    } else {
      const slot = p.slots[pick.i];
      add("slot", [pick.i]); add("line", [slot.line]); add("step", slot.steps);
      for (const i of slot.steps) add("node", p.steps[i].nodes.filter((n) => p.nodes[n].line === slot.line));
    }
    for (const i of found.step) add("kernel", [p.steps[i].kernel]);
    return found;
  }

  function sides(pick) {
    // Which statements of a line are meant: written, derived or both.
    if (pick.kind === "node") return [program.nodes[pick.i].derived];
    if (pick.kind === "box") return [program.folds[fold].boxes[pick.i].derived];
    return [false, true];
  }

  function light(pick) {
    for (const element of lit) element.classList.remove("lit", "picked");
    lit = [];
    const mark = (element, name) => { element.classList.add(name); lit.push(element); };
    const status = document.getElementById("status");
    if (!pick) { status.textContent = overview(); return; }
    const found = linked(pick);
    for (const [kind, numbers] of Object.entries(found)) {
      for (const i of numbers) for (const element of shown[kind].get(i) || []) mark(element, "lit");
    }
    program.folds[fold].boxes.forEach((box, i) => {
      if (shown.box.has(i) && box.nodes.some((n) => found.node.has(n))) for (const element of shown.box.get(i)) mark(element, "lit");
    });
    const meant = sides(pick);
    for (const i of found.line) {
      for (const element of shown.code.get(i) || []) {
        if (found.kernel.has(Number(element.dataset.kernel)) && meant.includes(element.dataset.derived === "true")) mark(element, "lit");
      }
    }
    for (const element of (shown[pick.kind].get(pick.i) || [])) mark(element, "picked");
    status.textContent = summary(pick, found);
  }

  function overview() {
    const t = program.totals;
    return [`${program.name} on ${program.device}`, `${count(t.operations, "operation")} (${t.derived} derived)`, count(t.kernels, "kernel"),
      count(t.launches, "launch", "launches"), `${bytes(t.bytes)} moved`, flops(t.flops), `${bytes(t.memory)} of intermediates`,
      t.seconds ? `${seconds(t.seconds)} a call` : ""].filter(Boolean).join(" · ");
  }

  function title(pick) {
    const p = program;
    if (pick.kind === "line") return lineName(pick.i);
    if (pick.kind === "node") {
      const node = p.nodes[pick.i];
      const how = { computed: "computed in a kernel", line: "part of what its line became", inlined: "part of what reads it",
        read: "given", gone: "not needed" }[node.how] || "interpreted";
      return [`${node.op} ${node.label} ${node.type}`, node.line >= 0 ? `${node.derived ? "backward of " : ""}${lineName(node.line)}` : "",
        node.module, node.call, how].filter(Boolean).join(" · ");
    }
    if (pick.kind === "box") return boxLabel(p.folds[fold].boxes[pick.i]);
    return pick.kind === "step" ? p.steps[pick.i].name : pick.kind === "kernel" ? p.kernels[pick.i].name
      : `${p.slots[pick.i].name} ${p.slots[pick.i].type}`;
  }

  function summary(pick, found) {
    const steps = [...found.step].map((i) => program.steps[i]);
    const time = sum(steps.map((step) => step.seconds || 0));
    const all = sum(program.steps.map((step) => step.seconds || 0));
    const shares = steps.filter((step) => step.limit).sort((a, b) => b.seconds - a.seconds);
    return [title(pick), count(found.node.size, "operation"), count(sum(steps.map((step) => step.times)), "launch", "launches"),
      `${bytes(sum(steps.map((step) => step.bytes)))} moved`, flops(sum(steps.map((step) => step.flops))),
      time ? `${seconds(time)} (${percent(time / all)})` : "", shares.length ? `${percent(shares[0].share)} of the limit of ${shares[0].limit}` : "",
      `${bytes(sum([...found.slot].map((i) => program.slots[i].bytes)))} of memory`].filter(Boolean).join(" · ");
  }

  // ------------------------------------------------------------------------------------------------------------ colours

  const words = {
    python: /\b(and|as|assert|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|None|True|False)\b/,
    c: /\b(__kernel|__global|__local|__constant|const|restrict|if|else|for|while|do|return|break|continue|static|inline|void|char|uchar|short|ushort|int|uint|long|ulong|half|float|double|bool|size_t)(?:2|3|4|8|16)?\b/,
  };
  const tokens = {
    python: new RegExp(`(#.*)|("""|'''|"(?:\\\\.|[^"\\\\])*"|'(?:\\\\.|[^'\\\\])*')|(\\b\\d[\\w.]*)|${words.python.source}`, "g"),
    c: new RegExp(`(//.*|/\\*.*?\\*/)|("(?:\\\\.|[^"\\\\])*")|(\\b\\d[\\w.]*)|${words.c.source}`, "g"),
  };

  function coloured(text, language) {
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(tokens[language])) {
      parts.push(text.slice(end, match.index));
      const kind = match[1] ? "comment" : match[2] ? "string" : match[3] ? "digits" : "word";
      parts.push(h("span", { class: kind }, match[0]));
      end = match.index + match[0].length;
    }
    parts.push(text.slice(end));
    return parts;
  }

  // ------------------------------------------------------------------------------------------------------ source, kernels

  function source() {
    const number = new Map(program.lines.map((line, i) => [`${line.file}:${line.line}`, i]));
    const most = Math.max(1e-12, ...program.lines.map((line) => line.seconds || line.bytes));
    const parts = program.files.parts.map(([file, first, lines]) => {
      const rows = lines.map((text, k) => {
        const i = number.get(`${file}:${first + k}`);
        const line = program.lines[i];
        const bar = line ? (line.seconds || line.bytes) / most : 0;
        const row = h("div", { class: "row" }, h("span", { class: "number" }, String(first + k)),
          h("span", { class: "bar", style: `--share:${bar.toFixed(3)}` }), h("span", { class: "text" }, coloured(text, "python")));
        return i === undefined ? row : register("line", i, row);
      });
      return [h("h3", {}, program.files.names[file]), h("div", { class: "code" }, rows)];
    });
    return h("section", { id: "source" }, h("h2", {}, "Source"), ...parts.flat());
  }

  function kernels() {
    const parts = program.kernels.map((kernel, i) => {
      const rows = kernel.code.map(([text, line, derived]) => {
        const row = h("div", { class: "row" }, coloured(text, "c"));
        row.dataset.kernel = i;
        row.dataset.derived = derived;
        return line < 0 ? row : register("code", line, row);
      });
      const steps = kernel.steps.map((k) => program.steps[k]);
      const facts = [kernel.of, bytes(sum(steps.map((step) => step.bytes))), flops(sum(steps.map((step) => step.flops))),
        ...steps.filter((step) => step.limit).slice(0, 1).map((step) => `${seconds(step.seconds)}, ${percent(step.share)} of ${step.limit}`)];
      const head = register("kernel", i, h("summary", {}, kernel.name, h("small", {}, facts.filter(Boolean).join(" · "))));
      return h("details", program.kernels.length <= 40 || i === 0 ? { open: "" } : {}, head, h("div", { class: "code" }, rows));
    });
    const none = program.device === "numpy" ? "No kernels: this program ran on the device “numpy”, which interprets the graph."
      : `Not shown: the program runs on ${program.device}, each with kernels of its own. f.kernels() has them.`;
    return h("section", { id: "kernels" }, h("h2", {}, "Kernels"), ...(parts.length ? parts : [h("p", {}, none)]));
  }

  // -------------------------------------------------------------------------------------------------------------- graph

  const LETTER = 7, ROW = 24, GAP = 16, HEAD = 24;

  function boxLabel(box) {
    const side = box.derived ? " ∂" : "";
    const name = fold === "line" ? lineName(box.key) : fold === "module" ? box.key || "no module"
      : box.key >= 0 ? program.steps[box.key].name : "no kernel";
    return `${name}${side} (${box.nodes.length})`;
  }
  const nodeLabel = (node) => `${node.label || node.op} ${node.type.replace(/^[a-z]+\d*/, "")}`.slice(0, 60);

  function sizes(boxes) {
    return boxes.map((box, i) => {
      const label = LETTER * boxLabel(box).length + 40;
      if (!open.has(i)) return [label, HEAD];
      const widths = box.inside.map((row) => sum(row.map((n) => LETTER * nodeLabel(program.nodes[n]).length + 16 + GAP)));
      return [Math.max(label, ...widths) + GAP, HEAD + GAP + box.inside.length * (ROW + GAP)];
    });
  }

  function places() {
    // The upper left corner, width and height of every box, and of every operation of open ones.
    const { boxes, rows } = program.folds[fold];
    const size = sizes(boxes);
    const width = (numbers) => sum(numbers.map((i) => size[i][0] + GAP));
    const columns = [0, 1].map((side) => Math.max(0, ...rows.map((row) => width(row[side]))));
    const box = new Map(), node = new Map();
    let top = 0;
    for (const row of rows) {
      row.forEach((numbers, side) => {
        let left = (side ? columns[0] + 3 * GAP : 0) + (columns[side] - width(numbers)) / 2;
        for (const i of numbers) {
          box.set(i, [left, top, ...size[i]]);
          if (open.has(i)) inside(boxes[i], left, top, size[i][0], node);
          left += size[i][0] + GAP;
        }
      });
      top += Math.max(HEAD, ...row.flat().map((i) => size[i][1])) + 2 * GAP;
    }
    return { box, node, width: columns[0] + columns[1] + 4 * GAP, height: top };
  }

  function inside(box, left, top, width, node) {
    box.inside.forEach((row, k) => {
      const widths = row.map((n) => LETTER * nodeLabel(program.nodes[n]).length + 16);
      let x = left + (width - sum(widths) - GAP * (row.length - 1)) / 2;
      row.forEach((n, j) => {
        node.set(n, [x, top + HEAD + GAP + k * (ROW + GAP), widths[j], ROW]);
        x += widths[j] + GAP;
      });
    });
  }

  function edges(place) {
    const boxOf = new Map();
    program.folds[fold].boxes.forEach((box, i) => box.nodes.forEach((n) => boxOf.set(n, i)));
    const found = new Map();
    program.nodes.forEach((user, n) => {
      for (const o of user.inputs) {
        const [from, to] = [o, n].map((m) => place.node.has(m) ? `n${m}` : `b${boxOf.get(m)}`);
        if (from !== to) found.set(`${from} ${to}`, [o, n].map((m) => place.node.get(m) || place.box.get(boxOf.get(m))));
      }
    });
    return [...found.values()].map(([a, b]) => {
      const down = b[1] >= a[1] + a[3] / 2;
      const [x, y, u, v] = [a[0] + a[2] / 2, a[1] + (down ? a[3] : 0), b[0] + b[2] / 2, b[1] + (down ? 0 : b[3])];
      const bend = (down ? 1 : -1) * Math.min(40, Math.max(10, Math.abs(v - y) / 2));
      return `M${x} ${y}C${x} ${y + bend} ${u} ${v - bend} ${u} ${v}`;
    });
  }

  function drawGraph() {
    const canvas = document.getElementById("view");
    shown.box = new Map();
    shown.node = new Map();
    const place = places();
    const drawn = [s("path", { class: "edges", d: edges(place).join("") })];
    const { boxes } = program.folds[fold];
    for (const [i, [x, y, w, height]] of place.box) {
      const sign = s("text", { x: 10, y: 16 }, open.has(i) ? "▾" : "▸");
      const toggles = s("path", { class: "toggle", d: `M0 0H26V${HEAD}H0Z`, "data-toggle": i });
      const group = s("g", { class: `box${boxes[i].derived ? " derived" : ""}${open.has(i) ? " open" : ""}`, transform: `translate(${x} ${y})` },
        s("rect", { width: w, height, rx: 5 }), sign, s("text", { x: 26, y: 16 }, boxLabel(boxes[i])), toggles);
      drawn.push(register("box", i, group));
    }
    for (const [n, [x, y, w, height]] of place.node) {
      const node = program.nodes[n];
      const group = s("g", { class: `node${node.derived ? " derived" : ""}${node.inputs.length ? "" : " leaf"}`, transform: `translate(${x} ${y})` },
        s("rect", { width: w, height, rx: 3 }), s("text", { x: 8, y: 16 }, nodeLabel(node)));
      drawn.push(register("node", n, group));
    }
    canvas.replaceChildren(...drawn);
    canvas.dataset.width = place.width;
    canvas.dataset.height = place.height;
    return place;
  }

  function move() {
    document.getElementById("view").setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.k})`);
  }

  function fit() {
    const canvas = document.getElementById("view"), frame = document.getElementById("canvas").getBoundingClientRect();
    const k = Math.min(frame.width / canvas.dataset.width, frame.height / canvas.dataset.height, 1.2) * 0.96;
    view = { k: Math.max(k, 0.01), x: 8, y: 8 };
    move();
  }

  function zoom(factor, x, y) {
    const k = Math.min(8, Math.max(0.01, view.k * factor));
    view = { k, x: x - (x - view.x) * k / view.k, y: y - (y - view.y) * k / view.k };
    move();
  }

  function centre(place) {
    const frame = document.getElementById("canvas").getBoundingClientRect();
    view.x = frame.width / 2 - view.k * (place[0] + place[2] / 2);
    view.y = frame.height / 2 - view.k * (place[1] + place[3] / 2);
    move();
  }

  function toggle(i) {
    if (!open.delete(i)) open.add(i);
    drawGraph();
    light(pinned);
  }

  function graph() {
    const canvas = s("svg", { id: "canvas", role: "img", "aria-label": "the graph" }, s("g", { id: "view" }));
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const frame = canvas.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 400), event.clientX - frame.left, event.clientY - frame.top);
    }, { passive: false });
    const fingers = new Map();        // the pointers that are down, and where each was: one drags, two zoom
    canvas.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, [event.clientX, event.clientY]); });
    canvas.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId), now = [event.clientX, event.clientY];
      if (!before || !event.buttons) return;
      const held = [...fingers].find(([id]) => id !== event.pointerId);
      if (held) {
        const frame = canvas.getBoundingClientRect(), apart = ([x, y]) => Math.max(1, Math.hypot(x - held[1][0], y - held[1][1]));
        zoom(apart(now) / apart(before), held[1][0] - frame.left, held[1][1] - frame.top);
      } else { view.x += now[0] - before[0]; view.y += now[1] - before[1]; move(); }
      fingers.set(event.pointerId, now);
    });
    for (const name of ["pointerup", "pointercancel", "pointerleave"]) canvas.addEventListener(name, (event) => { fingers.delete(event.pointerId); });
    const button = (label, name, act) => { const b = h("button", { type: "button", title: name, "aria-label": name }, label); b.onclick = act; return b; };
    const middle = (factor) => () => { const f = canvas.getBoundingClientRect(); zoom(factor, f.width / 2, f.height / 2); };
    const all = () => { open = new Set(program.folds[fold].boxes.keys()); drawGraph(); fit(); light(pinned); };
    const none = () => { open = new Set(); drawGraph(); fit(); light(pinned); };
    const choose = h("select", { id: "fold", "aria-label": "what a box is" }, ...["line", "module", "kernel"].map((name) =>
      h("option", { value: name }, name === "kernel" ? "by fusion group" : `by ${name}`)));
    choose.value = fold;
    choose.onchange = () => { fold = choose.value; none(); };
    const tools = h("div", { class: "tools" }, choose, button("+", "zoom in", middle(1.3)), button("−", "zoom out", middle(1 / 1.3)),
      button("fit", "show all", fit), button("open", "open all boxes", all), button("close", "close all boxes", none));
    return h("section", { id: "graph" }, h("h2", {}, "Graph", h("small", {}, " forward on the left, derived backward on the right")), tools, canvas);
  }

  // -------------------------------------------------------------------------------------------------------- below the graph

  function timeline() {
    const spans = program.timeline.length ? program.timeline : [];
    if (!spans.length) {
      let at = 0;
      program.steps.forEach((step, i) => { const length = Math.max(1, step.bytes); spans.push([i, at, at + length]); at += length; });
    }
    const end = Math.max(1e-9, ...spans.map((span) => span[2])), width = 1000;
    const bars = spans.map(([i, start, stop]) => {
      const step = program.steps[i], x = width * start / end, w = Math.max(1, width * (stop - start) / end);
      const y = 60 * step.lane + (step.host ? 4 : 32);
      const bar = s("g", { class: step.host ? "bar host" : "bar" }, s("rect", { x, y, width: w, height: 22 }));
      if (w > 40) bar.append(s("text", { x: x + 4, y: y + 15 }, step.name.slice(0, Math.floor(w / 7))));
      bar.append(s("title", {}, program.devices.length > 1 ? `${step.name}, on ${program.devices[step.lane]}` : step.name));
      return register("step", i, bar);
    });
    const scale = program.timeline.length ? `one call: ${seconds(1e-6 * end)} from the first launch on; host steps above, kernels below`
      : `not measured (${program.untimed}); a bar is as long as a launch moves bytes`;
    const lanes = program.devices.length > 1 ? ` · from above: ${program.devices.join("; ")}; what is sent stands with who gets it` : "";
    return h("div", { class: "tab", id: "timeline" }, h("p", {}, scale + lanes), s("svg", { viewBox: `0 0 ${width} ${60 * program.devices.length}` }, ...bars));
  }

  function memory() {
    const temps = program.slots.map((slot, i) => [slot, i]).filter(([slot]) => slot.first >= 0);
    const room = [];
    for (const [slot] of temps) room[slot.block] = Math.max(room[slot.block] || 0, slot.bytes);
    const tops = [];
    let total = 0;
    for (let b = 0; b < room.length; b += 1) { tops[b] = total; total += room[b] || 0; }
    const columns = Math.max(1, program.steps.length), width = 1000, height = 160;
    const bars = temps.map(([slot, i]) => {
      const x = width * slot.first / columns, w = width * (slot.last - slot.first + 1) / columns;
      const y = height * tops[slot.block] / (total || 1), tall = Math.max(1, height * slot.bytes / (total || 1));
      const bar = s("g", { class: "slot" }, s("rect", { x, y, width: w, height: tall }), s("title", {}, `${slot.name} ${slot.type} ${bytes(slot.bytes)}`));
      if (tall > 12 && w > 40) bar.append(s("text", { x: x + 4, y: y + 11 }, slot.name.slice(0, Math.floor(w / 7))));
      return register("slot", i, bar);
    });
    const m = program.memory;
    const text = m ? `intermediates over the ${count(program.steps.length, "step")} of the plan: ${bytes(m.peak)} at most, ${bytes(m.reserved)} reserved · inputs `
      + `${bytes(m.inputs)}, new results ${bytes(m.outputs)}, constants ${bytes(m.constants)}` : "no plan";
    return h("div", { class: "tab", id: "memory" }, h("p", {}, text), s("svg", { viewBox: `0 0 ${width} ${height}` }, ...bars));
  }

  function why() {
    const steps = program.steps.map((step, i) => h("div", {}, register("step", i, h("h3", {}, `[${i}] ${step.name}${step.times > 1 ? ` × ${step.times}` : ""}`)),
      h("ul", {}, ...step.why.map((text) => h("li", {}, text)))));
    const again = program.recomputed.map((item) => {
      const names = item.steps.map((i) => program.steps[i].name).join(", ");
      const row = h("li", {}, `${item.op}${item.derived ? " (backward)" : ""}, ${lineName(item.line)}: in ${names}`);
      return item.line < 0 ? row : register("line", item.line, row);
    });
    return h("div", { class: "tab", id: "why" }, h("h3", {}, "Computed again, in place of being stored"),
      h("ul", { id: "recomputed" }, ...(again.length ? again : [h("li", {}, "nothing")])), ...program.notes.map((note) => h("p", {}, note)),
      h("h3", {}, "Remedies"), h("ul", {}, ...(program.remedies.length ? program.remedies : ["none"]).map((text) => h("li", {}, text))), ...steps);
  }

  function compiled() {
    return h("div", { class: "tab", id: "compiled" }, h("h3", {}, "Why it was compiled"), h("ol", {}, ...data.compilations.map((text) => h("li", {}, text))),
      h("h3", {}, "Inputs"), h("ul", {}, ...program.inputs.map((text) => h("li", {}, text))),
      h("h3", {}, "Guards: compiled again when one of these is another"),
      h("ul", { id: "guards" }, ...(program.guards.length ? program.guards : ["the arguments' shapes and dtypes alone"]).map((text) => h("li", {}, text))));
  }

  function beside() {
    const others = data.programs.filter((other) => other !== program);
    if (!others.length) return h("div", { class: "tab", id: "beside" }, h("p", {}, "There is one compilation. Call the function with other sizes, or give page(beside=...) another function."));
    const holder = h("div", {});
    const choose = h("select", { id: "other", "aria-label": "the other compilation" }, ...others.map((other, i) => h("option", { value: i }, label(other))));
    const draw = () => holder.replaceChildren(...pair(program, others[Number(choose.value)]));
    choose.onchange = draw;
    draw();
    return h("div", { class: "tab", id: "beside" }, choose, holder);
  }

  function pair(a, b) {
    const rows = Object.keys(a.totals).map((name) => {
      const show = { bytes, flops, memory: bytes, seconds: (n) => n ? seconds(n) : "not measured" }[name] || String;
      const differ = a.totals[name] !== b.totals[name];
      return h("tr", differ ? { class: "differs" } : {}, h("th", {}, name), h("td", {}, show(a.totals[name])), h("td", {}, show(b.totals[name])));
    });
    const facts = ["device", "reason"].map((name) => h("tr", a[name] === b[name] ? {} : { class: "differs" }, h("th", {}, name), h("td", {}, a[name]), h("td", {}, b[name])));
    const inputs = h("tr", {}, h("th", {}, "inputs"), h("td", {}, a.inputs.join(", ")), h("td", {}, b.inputs.join(", ")));
    const names = [...new Set([...a.kernels, ...b.kernels].map((kernel) => kernel.name))];
    const texts = names.map((name) => {
      const [left, right] = [a, b].map((p) => (p.kernels.find((kernel) => kernel.name === name) || { code: [] }).code.map((line) => line[0]));
      const column = (lines, other) => h("div", { class: "code" }, lines.map((text) => h("div", other.includes(text) ? { class: "row" } : { class: "row differs" }, coloured(text, "c"))));
      const same = left.join("\n") === right.join("\n");
      return h("details", same ? {} : { open: "" }, h("summary", {}, `${name}${same ? ": the same" : ""}`), h("div", { class: "pair" }, column(left, right), column(right, left)));
    });
    return [h("table", {}, h("tbody", {}, ...facts, inputs, ...rows)), ...texts];
  }

  const label = (p) => `${p.name} (${p.inputs.join(", ")}) on ${p.device}`.slice(0, 120);

  function tabs() {
    const parts = { timeline: ["Timeline", timeline()], memory: ["Memory", memory()], why: ["Why", why()], compiled: ["Compiled", compiled()], beside: ["Side by side", beside()] };
    const bar = h("nav", {});
    const section = h("section", { id: "below" }, bar);
    for (const [name, [text, part]] of Object.entries(parts)) {
      const button = h("button", { type: "button", "data-tab": name }, text);
      button.onclick = () => { section.dataset.tab = name; };
      bar.append(button);
      part.prepend(h("h2", { class: "printed" }, text));
      section.append(part);
    }
    section.dataset.tab = "timeline";
    return section;
  }

  // --------------------------------------------------------------------------------------------------------- search, head

  function search(text) {
    for (const element of document.querySelectorAll(".found")) element.classList.remove("found");
    const wanted = text.trim().toLowerCase(), result = document.getElementById("found");
    if (!wanted) { result.textContent = ""; return; }
    const has = (...texts) => texts.some((part) => part && part.toLowerCase().includes(wanted));
    const nodes = program.nodes.flatMap((node, i) => has(node.op, node.label, node.type, node.module, node.call) ? [i] : []);
    const boxes = program.folds[fold].boxes.flatMap((box, i) => box.nodes.some((n) => nodes.includes(n)) || has(boxLabel(box)) ? [i] : []);
    const all = [...nodes.flatMap((n) => shown.node.get(n) || []), ...boxes.flatMap((i) => shown.box.get(i) || []),
      ...program.kernels.flatMap((kernel, i) => has(kernel.name) ? shown.kernel.get(i) : []),
      ...[...document.querySelectorAll("#source .row, #kernels .row")].filter((row) => has(row.textContent))];
    for (const element of all) element.classList.add("found");
    result.textContent = `${count(nodes.length, "operation")}, ${count(all.length, "place")}`;
    const place = places();
    const first = nodes.map((n) => place.node.get(n)).find(Boolean) || (boxes.length ? place.box.get(boxes[0]) : null);
    if (first) centre(first);
  }

  function header() {
    const field = h("input", { id: "search", type: "search", placeholder: "search ( / )", "aria-label": "search" });
    field.oninput = () => search(field.value);
    const choose = h("select", { id: "program", "aria-label": "the compilation" }, ...data.programs.map((p, i) => h("option", { value: i }, label(p))));
    choose.value = data.programs.indexOf(program);
    choose.onchange = () => show(data.programs[Number(choose.value)]);
    return h("header", {}, h("h1", {}, program.name), choose, field, h("span", { id: "found" }), h("div", { id: "status", role: "status" }));
  }

  function show(chosen) {
    program = chosen;
    open = new Set();
    pinned = null;
    shown = Object.fromEntries(["line", "code", "node", "box", "step", "kernel", "slot"].map((kind) => [kind, new Map()]));
    app.replaceChildren(header(), h("main", {}, source(), graph(), kernels()), tabs());
    if (program.nodes.length <= 60) open = new Set(program.folds[fold].boxes.keys());
    drawGraph();
    fit();
    light(null);
    app.dataset.ready = "true";
  }

  function pickOf(event) {
    const element = event.target.closest ? event.target.closest("[data-kind]") : null;
    if (!element) return null;
    return { kind: element.dataset.kind === "code" ? "line" : element.dataset.kind, i: Number(element.dataset.i) };
  }
  app.addEventListener("pointerover", (event) => { if (!event.buttons) light(pickOf(event) || pinned); });
  app.addEventListener("click", (event) => {
    if (event.target.dataset && event.target.dataset.toggle !== undefined) { toggle(Number(event.target.dataset.toggle)); return; }
    if (event.target.closest("button, select, input, nav")) return;
    const pick = pickOf(event), same = pick && pinned && pick.kind === pinned.kind && pick.i === pinned.i;
    pinned = same ? null : pick;
    light(pinned);
    if (pinned && pinned.kind !== "line" && !event.target.closest("#source")) reveal(".lit", "#source");
    if (pinned && !event.target.closest("#kernels")) reveal(".row.lit", "#kernels");
  });
  function reveal(what, where) {
    const element = document.querySelector(`${where} ${what}`), frame = document.querySelector(where);
    if (element && frame.scrollHeight > frame.clientHeight) frame.scrollTop += element.getBoundingClientRect().top - frame.getBoundingClientRect().top - 60;
  }
  app.addEventListener("dblclick", (event) => { const pick = pickOf(event); if (pick && pick.kind === "box") toggle(pick.i); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { pinned = null; light(null); }
    if (event.key === "/" && event.target.tagName !== "INPUT") { event.preventDefault(); document.getElementById("search").focus(); }
  });
  window.addEventListener("beforeprint", () => fit());
  show(data.programs[0]);
})();
