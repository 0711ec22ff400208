// What ties the page together: the filter that chips, matrix and search share, copy buttons, links to failures.
(() => {
  "use strict";
  const { records, columns, constant } = window.Calipers;
  const by = (id) => document.getElementById(id);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const filter = { text: "", statuses: new Set(), column: "", family: null };
  let table = null;

  const keyOf = (index) => {
    const option = by("column") && by("column").querySelector(`option[value="${Number(index)}"]`);
    return option ? JSON.parse(option.dataset.key) : null;
  };

  const matches = (row, words, key) => (!filter.statuses.size || filter.statuses.has(row.status))
    && (filter.family === null || row.family === filter.family)
    && (!key || (row.backend === key[0] && row.mode === key[1] && row.dtype === key[2] && row.profile === key[3] && row.workload === key[4]))
    && words.every((word) => row.text.includes(word));

  const apply = () => {
    const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
    const key = filter.column === "" ? null : keyOf(filter.column);
    const active = Boolean(words.length || filter.statuses.size || key || filter.family !== null);
    if (active) table.setFilter((row) => matches(row, words, key));
    else table.clearFilter();
    const shown = records.filter((row) => matches(row, words, key)).length;
    by("shown").textContent = active ? `${shown} of ${records.length} rows` : `${records.length} row${records.length === 1 ? "" : "s"}`;
    by("clear").hidden = !active;
    by("family").hidden = filter.family === null;
    by("family").textContent = filter.family === null ? "" : `family ${filter.family || "(none)"} ×`;
    for (const chip of all("[data-status]")) chip.setAttribute("aria-pressed", String(filter.statuses.has(chip.dataset.status)));
    for (const cell of all(".cell")) {
      cell.classList.toggle("chosen", cell.dataset.family === filter.family && (filter.column === "" || cell.dataset.column === filter.column));
    }
  };

  const jump = (id) => by(id).scrollIntoView({ block: "start" });

  const wire = () => {
    by("search").addEventListener("input", (event) => { filter.text = event.target.value; apply(); });
    if (by("column")) by("column").addEventListener("change", (event) => { filter.column = event.target.value; apply(); });
    for (const chip of all("[data-status]")) {
      chip.addEventListener("click", () => {
        const status = chip.dataset.status;
        if (!filter.statuses.delete(status)) filter.statuses.add(status);
        apply();
        if (chip.closest(".legend") && filter.statuses.size) jump("rows");
      });
    }
    for (const cell of all(".cell")) {
      cell.addEventListener("click", () => {
        filter.family = cell.dataset.family;
        filter.statuses.clear();
        if (by("column")) by("column").value = filter.column = cell.dataset.column;
        apply();
        jump("rows");
      });
    }
    by("family").addEventListener("click", () => { filter.family = null; apply(); });
    by("clear").addEventListener("click", () => {
      Object.assign(filter, { text: "", column: "", family: null });
      filter.statuses.clear();
      by("search").value = "";
      if (by("column")) by("column").value = "";
      apply();
    });
  };

  // Headers sort by keyboard too; the library listens to the mouse only.
  const keyboard = () => {
    for (const column of table.getColumns()) {
      const header = column.getElement();
      header.tabIndex = 0;
      header.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        const now = table.getSorters().find((sorter) => sorter.field === column.getField());
        const first = column.getDefinition().headerSortStartingDir || "asc";
        table.setSort(column.getField(), now ? (now.dir === "asc" ? "desc" : "asc") : first);
      });
    }
  };

  if (records.length) {
    by("constant").textContent = constant.length ? `every row: ${constant.map((field) => records[0][field]).join(" · ")}` : "";
    const narrow = window.matchMedia("(max-width: 720px)").matches;
    table = new Tabulator("#table", {
      data: records, index: "id", layout: "fitColumns", maxHeight: "min(74vh, 760px)", rowHeight: 38,
      columns: columns(narrow), columnDefaults: { headerTooltip: false, resizable: false },
      // The library would draw the rows anew each time they scroll into view, and take the focus from whoever tabs in.
      autoResize: false,
      initialSort: [{ column: "worst", dir: "desc" }, { column: "rank", dir: "asc" }],
      placeholder: "No row matches these filters.",
    });
    window.addEventListener("resize", () => table.redraw(true));
    table.on("tableBuilt", () => { keyboard(); wire(); document.documentElement.dataset.ready = "true"; });
  } else {
    document.documentElement.dataset.ready = "true";
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest && event.target.closest("[data-copy]");
    if (!button) return;
    let copied = false;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      copied = true;
    } catch {
      // A page from a file may not use the clipboard: select the command, so that one key copies it.
      window.getSelection().selectAllChildren(button.parentElement.querySelector("code"));
      copied = document.execCommand("copy");
    }
    button.textContent = copied ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });

  const unfold = by("unfold");
  if (unfold) unfold.addEventListener("click", () => { by("good").hidden = false; unfold.closest("tbody").hidden = true; });

  // A link to a failure inside a fold opens the fold.
  const reveal = () => {
    const target = location.hash.length > 1 && by(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target.scrollIntoView({ block: "start" });
  };
  window.addEventListener("hashchange", reveal);
  reveal();
})();
