// The table of rows: columns, how each cell is drawn, how it sorts. Text enters the page as text nodes only.
window.Calipers = (() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const records = data.rows.map((row, index) => ({ id: index, ...row, ...data.extras[index], metrics: row.metrics,
    worst: row.metrics.worst_in_budgets, rms: row.metrics.rms_ratio, abs: row.metrics.max_abs,
    rank: data.statuses[row.status].rank,
    text: [row.model, row.family, row.backend, row.mode, row.dtype, row.profile, row.workload, row.status, data.statuses[row.status].label,
      row.op, row.message, row.substituted.length ? "substituted" : ""].join("\n").toLowerCase() }));

  // An element with text children: the only way in which this page makes elements.
  const el = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined) made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  };

  const number = (value, digits = 3) => {
    if (value === null || value === undefined) return "–";
    if (typeof value === "string") return value.replace("Infinity", "inf");
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(digits - 1).replace("e+", "e");
    return String(Number(value.toPrecision(digits)));
  };
  const seconds = (value) => (value < 0.1 ? `${number(value * 1000, 2)} ms` : value < 60 ? `${value.toFixed(1)} s`
    : `${Math.floor(value / 60)} min ${String(Math.round(value % 60)).padStart(2, "0")} s`);
  const count = (value) => {
    if (value === null) return "–";
    for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
      if (value >= size) return Number((value / size).toPrecision(3)) + unit;
    }
    return String(value);
  };

  const badge = (row) => {
    const mark = data.statuses[row.status];
    return el("span", { class: `badge ${row.tone}`, title: mark.meaning },
      el("span", { class: "symbol", "aria-hidden": "true" }, mark.symbol), mark.label);
  };

  const drawn = {
    model: (cell) => {
      const row = cell.getData();
      const open = el("button", { type: "button", class: "link model", title: row.model }, row.model);
      open.addEventListener("click", () => window.Calipers.show(row));
      return open;
    },
    status: (cell) => badge(cell.getData()),
    fault: (cell) => (cell.getValue() === "none" ? el("span", { class: "faint" }, "–") : el("span", {}, cell.getValue())),
    op: (cell) => (cell.getValue() ? el("code", { title: cell.getValue() }, cell.getValue()) : el("span", { class: "faint" }, "–")),
    worst: (cell) => {
      const value = cell.getValue();
      return el("span", { class: value !== null && !(Number(value) <= 1) ? "over" : value === null ? "faint" : "" }, number(value));
    },
    number: (cell) => el("span", { class: cell.getValue() === null ? "faint" : "" }, number(cell.getValue())),
    share: (cell) => {
      const value = cell.getValue();
      return el("span", { class: value === null ? "faint" : value < 0.8 ? "over" : "" }, value === null ? "–" : `${Math.floor(100 * value)} %`);
    },
    seconds: (cell) => el("span", { title: seconds(cell.getValue()) }, cell.getValue() < 100 ? seconds(cell.getValue()) : `${Math.round(cell.getValue())} s`),
    count: (cell) => el("span", {}, count(cell.getValue())),
    message: (cell) => {
      const row = cell.getData();
      const instead = row.substituted.join(", ");
      const tag = instead ? el("span", { class: "tag", title: instead }, "substituted") : "";
      const text = row.status.startsWith("pass")
        ? el("span", { class: "faint", title: row.message || instead }, row.message || instead)
        : el("a", { href: `#${row.anchor}`, title: row.message }, row.message || "see below");
      return el("span", {}, tag, text);
    },
    text: (cell) => el("span", { title: cell.getValue() }, cell.getValue()),
  };

  // Absent numbers go last whichever way the column is sorted; NaN and inf are worse than any number.
  const size = (value) => (value === "NaN" ? Infinity : Number(value));
  const numeric = (a, b, _rowA, _rowB, _column, direction) => {
    if (a === null || b === null) return ((a === null) - (b === null)) * (direction === "asc" ? 1 : -1);
    return size(a) === size(b) ? 0 : size(a) - size(b);
  };
  const right = { hozAlign: "right", headerHozAlign: "right", sorter: numeric, headerSortStartingDir: "desc" };
  const varies = (field) => new Set(records.map((row) => row[field])).size > 1;

  // A column with one value for every row says nothing: it is told once, above the table. On a narrow screen
  // the dialog of the row carries what has no column.
  const constant = ["backend", "mode", "dtype", "profile", "workload"].filter((field) => !varies(field));
  const columns = (narrow) => [
    { title: "Status", field: "rank", formatter: drawn.status, width: 166, sorter: "number" },
    { title: "Model", field: "model", formatter: drawn.model, minWidth: narrow ? 120 : 190, widthGrow: 2 },
    { title: "Family", field: "family", formatter: drawn.text, width: 100, visible: !narrow },
    { title: "Backend", field: "backend", formatter: drawn.text, width: 92, visible: !narrow && varies("backend") },
    { title: "Mode", field: "mode", formatter: drawn.text, width: 82, visible: !narrow && varies("mode") },
    { title: "Dtype", field: "dtype", formatter: drawn.text, width: 86, visible: !narrow && varies("dtype") },
    { title: "Profile", field: "profile", formatter: drawn.text, width: 98, visible: !narrow && varies("profile") },
    { title: "Workload", field: "workload", formatter: drawn.text, width: 98, visible: !narrow && varies("workload") },
    { title: "At fault", field: "at_fault", formatter: drawn.fault, width: 88, visible: !narrow },
    { title: "Op", field: "op", formatter: drawn.op, width: 128, visible: !narrow },
    { title: "Message", field: "message", formatter: drawn.message, minWidth: 136, widthGrow: 3, visible: !narrow },
    { title: "Worst", field: "worst", formatter: drawn.worst, width: 84, visible: !narrow, ...right },
    { title: "RMS", field: "rms", formatter: drawn.number, width: 70, visible: !narrow, ...right },
    { title: "Max abs", field: "abs", formatter: drawn.number, width: 90, visible: !narrow, ...right },
    { title: "Seen", field: "observability", formatter: drawn.share, width: 70, visible: !narrow && varies("observability"), ...right },
    { title: "Time", field: "seconds", formatter: drawn.seconds, width: 72, visible: !narrow, ...right },
    { title: "Params", field: "parameters", formatter: drawn.count, width: 84, visible: !narrow, ...right },
  ];

  return { data, records, columns, constant, el, number, seconds, count, badge };
})();
