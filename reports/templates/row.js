// The dialog of one row: every number that decided, its ops, its stage times, the command that runs it again.
(() => {
  "use strict";
  const { data, el, number, seconds, count, badge } = window.Calipers;
  const dialog = document.getElementById("row");
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const percent = (share) => `${Math.floor(100 * share)} %`;
  const bar = (share) => {
    const drawn = svg("svg", { class: "bar accent", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" });
    drawn.append(svg("rect", { class: "track", width: 100, height: 8 }), svg("rect", { width: 100 * share, height: 8 }));
    return drawn;
  };
  const pairs = (entries) => el("dl", { class: "pairs" },
    ...entries.filter(([, value]) => value !== null && value !== undefined && value !== "")
      .flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, value)]));
  const part = (title, ...content) => el("section", {}, el("h3", {}, title), ...content);

  const distance = (m) => {
    if (m.worst_in_budgets === null && m.max_abs === null) return el("p", { class: "none" }, "The outputs were not compared.");
    const at = `${m.leaf ?? ""}${m.index ? `[${m.index.join(", ")}]` : ""}`;
    return pairs([
      ["worst element", m.worst_in_budgets === null ? null : `${number(m.worst_in_budgets)} × budget`],
      ["at", at && el("code", {}, at)],
      ["device", number(m.device_value, 9)], ["reference", number(m.reference_value, 9)], ["fp64", number(m.control_value, 9)],
      ["out of budget", m.elements === null ? null : `${count(m.elements_over ?? 0)} of ${count(m.elements)} elements`],
      ["RMS ratio", number(m.rms_ratio)],
      ["relative RMS", `${number(m.device_rms)} device, ${number(m.reference_rms)} reference`],
      ["amplification", m.amplification === null || m.amplification === undefined ? null : `${number(m.amplification)} × an epsilon in the inputs`],
      ["max abs", number(m.max_abs)],
      ["cosine, for show", m.cosine === null ? null : String(Math.floor(m.cosine * 1e6) / 1e6)],
    ]);
  };

  const ops = (row) => {
    const counts = Object.entries(row.op_counts).sort((a, b) => b[1] - a[1]);
    if (!counts.length) return el("p", { class: "none" }, "No op was recorded.");
    const line = ([op, n]) => el("li", {}, el("code", {}, op), el("span", {}, String(n)));
    const rest = counts.length > 8
      ? el("details", {}, el("summary", {}, `${counts.length - 8} more`), el("ul", { class: "ops" }, ...counts.slice(8).map(line))) : null;
    return el("div", {}, el("ul", { class: "ops" }, ...counts.slice(0, 8).map(line)), rest);
  };

  const stages = (row) => {
    const times = Object.entries(row.stage_seconds);
    if (!times.length) return el("p", { class: "none" }, "No stage was timed.");
    const longest = Math.max(...times.map(([, value]) => value));
    return el("div", { class: "stages" }, ...times.map(([stage, value]) => el("div", { class: "stage-line" },
      el("span", { class: "name" }, stage), bar(longest ? value / longest : 0), el("span", { class: "figure" }, seconds(value)))));
  };

  window.Calipers.show = (row) => {
    const close = el("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
    close.addEventListener("click", () => dialog.close());
    const facts = [
      ["at fault", row.status.startsWith("pass") ? null : data.faults[row.at_fault]], ["stage", row.stage], ["op", row.op && el("code", {}, row.op)],
      ["class", row.numeric_class && row.numeric_class.replaceAll("_", " ")],
      ["substituted", row.substituted.join(", ")], ["on the CPU", row.fallback_ops.join(", ")], ["route", row.route],
      ["parameters", row.parameters === null ? null : `${count(row.parameters)}${row.reduced ? ", reduced" : ""}`],
      ["took", seconds(row.seconds)], ["peak memory", row.peak_memory_mib === null ? null : `${Math.round(row.peak_memory_mib)} MiB`],
      ["observability", row.observability === null ? null : `${percent(row.observability)} of the op calls${row.hidden_states ? ", hidden states judged too" : ""}`],
      ["weights", row.weights], ["also found", row.findings.join("; ")],
      ["seed", String(row.seed)], ["kernels", row.isa], ["attempts", row.attempts > 1 ? String(row.attempts) : null],
    ];
    const distinct = Object.keys(row.op_counts).length;
    dialog.replaceChildren(
      el("header", {}, el("div", {}, el("h2", { id: "row-title" }, row.model),
        el("p", { class: "where" }, badge(row), " " + [row.backend, row.mode, row.dtype, row.profile, row.workload].join(" · "))), close),
      ...(row.message ? [el("p", { class: "message" }, row.message)] : []),
      el("div", { class: "command" }, el("code", {}, row.command),
        el("button", { type: "button", class: "copy", "data-copy": row.command, "aria-label": "Copy the command" }, "Copy")),
      el("div", { class: "parts" }, part("Facts", pairs(facts)), part("How far from the truth", distance(row.metrics)),
        part("Time by stage", stages(row)), part(distinct ? `Ops, ${distinct} distinct` : "Ops", ops(row))),
      ...(row.detail ? [part("Detail", el("pre", { tabindex: "0" }, row.detail))] : []),
    );
    dialog.showModal();
    dialog.scrollTop = 0;
  };
  // A click on the backdrop is a click on the dialog element itself.
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
})();
