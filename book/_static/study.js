// Tables of the report: sorting, filters, views, commands to copy. Own code, no library, no request.
// Without it every table stands whole and in its own order; it only ever hides and moves what is there.
(() => {
  "use strict";

  // What a cell sorts by: the key of the view, its key, else its text, as a number where it begins with one.
  // null: nothing to sort by, last in both directions.
  function keyOf(cell, view) {
    for (const name of [`data-sort-${view}`, "data-sort"]) {
      if (cell.hasAttribute(name)) {
        const key = cell.getAttribute(name);
        return key === "" ? null : Number(key);
      }
    }
    const text = cell.textContent.trim();
    const number = text.replace(/[,\u00a0]/g, "").replace("\u2212", "-").match(/^[<>+]?(-?\d+(\.\d+)?)/);
    return number ? Number(number[1]) : /^(not |none|-$|$)/.test(text) ? null : text;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // numbers before words
    return a.localeCompare(b, "en", { numeric: true });
  }

  const viewOf = (table) => table.dataset.view || "";

  function order(table) {
    const head = table.querySelector("th[aria-sort=ascending], th[aria-sort=descending]");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const place = (row) => Number(row.dataset.place);
    rows.sort((a, b) => place(a) - place(b));
    if (head) {
      const column = Number(head.dataset.column);
      const sign = head.getAttribute("aria-sort") === "ascending" ? 1 : -1;
      const keys = new Map(rows.map((row) => [row, keyOf(row.cells[column], viewOf(table))]));
      rows.sort((a, b) => {
        const pinned = a.classList.contains("bc-pinned") - b.classList.contains("bc-pinned");
        const [x, y] = [keys.get(a), keys.get(b)];
        if (pinned || x === y) return pinned;
        if (x === null || y === null) return x === null ? 1 : -1;
        return sign * compare(x, y);
      });
    }
    body.append(...rows);
  }

  // ascending, descending, and back to the order of the report
  const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

  function sortable(table) {
    [...table.tBodies[0].rows].forEach((row, i) => { row.dataset.place = i; });
    const heads = table.querySelectorAll("thead th[data-column]");
    heads.forEach((head) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "bc-sort";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const next = NEXT[head.getAttribute("aria-sort")];
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", next);
        order(table);
      });
    });
  }

  function controls(box) {
    const table = document.getElementById(box.dataset.for);
    if (!table) return;
    const status = box.querySelector(".bc-status");
    const rows = [...table.tBodies[0].rows];
    const filters = [...box.querySelectorAll("[data-filter]")];
    const search = box.querySelector("[data-search]");
    const texts = new Map(); // row -> what a search looks at

    function searched(row) {
      if (!texts.has(row)) {
        const copy = row.cloneNode(true);
        copy.querySelectorAll("[data-unsearched]").forEach((e) => e.remove());
        texts.set(row, copy.textContent.toLowerCase());
      }
      return texts.get(row);
    }
    const columns = box.querySelector("[data-columns]");
    const views = box.querySelector("select[data-view]");

    function apply() {
      if (views) {
        table.dataset.view = views.value;
        table.querySelectorAll(".bc-view").forEach((e) => { e.hidden = e.dataset.view !== views.value; });
      }
      if (columns) {
        table.querySelectorAll("[data-group]").forEach((e) => {
          e.hidden = columns.value !== "" && e.dataset.group !== columns.value;
        });
      }
      const words = search ? search.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
      let shown = 0;
      for (const row of rows) {
        const text = words.length ? searched(row) : "";
        row.hidden =
          filters.some((f) => f.value !== "" && !(row.dataset[f.dataset.filter] || "").split(" ").includes(f.value)) ||
          words.some((word) => !text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      status.textContent = shown ? `${shown} of ${rows.length} rows` : `none of ${rows.length} rows fits`;
      order(table);
    }

    box.addEventListener("input", apply);
    box.addEventListener("change", apply); // a field that the browser filled in again after a reload
    box.hidden = false;
    apply();
    // A link into a row that a filter hides must still arrive
    window.addEventListener("hashchange", () => {
      const row = document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("tr");
      if (!row || !row.hidden || !rows.includes(row)) return;
      filters.forEach((f) => { f.value = ""; });
      if (search) search.value = "";
      apply();
      row.scrollIntoView();
    });
  }

  function copies(command) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "bc-copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy the command");
    command.after(button);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(command.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(command); // no right to the clipboard: the reader presses Ctrl+C
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  // What the theme leaves without a name, or with one that is not its text, for screen readers
  function theme() {
    document.querySelectorAll("nav details > summary").forEach((summary) => {
      const link = summary.closest("li")?.querySelector("a");
      summary.setAttribute("aria-label", `Pages below ${link ? link.textContent.trim() : "this one"}`);
    });
    document.querySelectorAll(".search-button__button").forEach((button) => {
      button.setAttribute("aria-label", button.textContent.replace(/\s+/g, " ").trim() || "Search");
    });
    document.querySelectorAll(".theme-switch-button").forEach((button) => {
      button.setAttribute("aria-label", "Color mode: Light Dark System Settings"); // the titles of its icons
    });
    const side = document.querySelector(".bd-sidebar-primary:not(dialog)");
    side?.setAttribute("role", "complementary");
    side?.setAttribute("aria-label", "Book");
  }

  // Paper has nothing to unfold: all is open while the page is printed. (The style sheet says the same to browsers that
  // know ::details-content, without a script.)
  function print() {
    let folded = [];
    window.addEventListener("beforeprint", () => {
      folded = [...document.querySelectorAll("article details:not([open])")];
      folded.forEach((e) => { e.open = true; });
    });
    window.addEventListener("afterprint", () => {
      folded.forEach((e) => { e.open = false; });
      folded = [];
    });
  }

  function start() {
    theme();
    print();
    document.querySelectorAll("table.bc-sortable").forEach(sortable);
    document.querySelectorAll(".bc-controls").forEach(controls);
    document.querySelectorAll(".bc-command").forEach(copies);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
