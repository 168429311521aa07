(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);
  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };

  // Theme: what the system says, light, dark; remembered where the browser allows it for files.
  const themes = ["auto", "light", "dark"];
  const themeButton = one("#theme");
  let theme = "auto";
  try { theme = localStorage.getItem("fiafuzz-theme") || "auto"; } catch (_) { /* no storage */ }
  const showTheme = () => {
    if (!themes.includes(theme)) theme = "auto";
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    themeButton.textContent = `Theme: ${theme}`;
  };
  themeButton.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("fiafuzz-theme", theme); } catch (_) { /* no storage */ }
    showTheme();
  });
  themeButton.hidden = false;
  showTheme();

  // Tables that sort: a button in every heading, numbers by data-v or by what they show.
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return "";
    const text = cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent.trim();
    const plain = text.replace(/,/g, "");
    return plain !== "" && !Number.isNaN(Number(plain)) ? Number(plain) : text.toLowerCase();
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
    return typeof a === "number" ? -1 : 1;
  };
  const sortBy = (table, heading) => {
    const column = heading.cellIndex;
    const first = heading.classList.contains("n") ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = heading.getAttribute("aria-sort") === first ? other : first;
    for (const th of table.tHead.rows[0].cells) th.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", order);
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
    const sign = order === "ascending" ? 1 : -1;
    rows.sort((a, b) => sign * compare(a[0], b[0]));
    body.append(...rows.map((pair) => pair[1]));
  };
  const prepare = (table) => {
    if (table.dataset.ready) return;
    table.dataset.ready = "1";
    for (const heading of table.tHead.rows[0].cells) {
      const button = make("button", heading.textContent, { type: "button" });
      heading.textContent = "";
      heading.append(button);
      button.addEventListener("click", () => sortBy(table, heading));
    }
  };
  for (const table of all("table.sortable")) {
    const holder = table.closest("details:not([open])");
    if (holder) holder.addEventListener("toggle", () => prepare(table), { once: true });
    else prepare(table);
  }

  // Filters: a search box and buttons over the rows or articles of one part of the page.
  const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const tools of all(".tools[data-for]")) {
    const target = document.getElementById(tools.dataset.for);
    const items = () => all(tools.dataset.items, target);
    const search = one("input", tools);
    const buttons = all("button[data-state]", tools);
    const said = one("output", tools);
    const texts = new WeakMap();
    const textOf = (item) => {
      if (!texts.has(item)) texts.set(item, item.textContent.toLowerCase());
      return texts.get(item);
    };
    const apply = () => {
      const words = wordsOf(search.value);
      const states = buttons.filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.dataset.state);
      const active = words.length > 0 || states.length > 0;
      let shown = 0;
      const list = items();
      for (const item of list) {
        const fits = (!states.length || states.includes(item.dataset.state)) && words.every((w) => textOf(item).includes(w));
        item.classList.toggle("gone", !fits);
        shown += fits;
      }
      said.textContent = active ? `${shown} of ${list.length} shown` : "";
      for (const group of all("details.group", target)) {
        const hits = one("tbody tr:not(.gone)", group);
        group.classList.toggle("gone", active && !hits);
        if (active && hits && !group.open) { group.open = true; group.dataset.opened = "1"; }
        if (!active && group.dataset.opened) { group.open = false; delete group.dataset.opened; }
      }
    };
    let timer = 0;
    search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(apply, 80); });
    search.addEventListener("keydown", (event) => { if (event.key === "Escape") { search.value = ""; apply(); } });
    for (const button of buttons) {
      button.addEventListener("click", () => {
        button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "true" ? "false" : "true");
        apply();
      });
    }
    tools.hidden = false;
  }

  // Lines that can be copied.
  const fallback = (text) => {
    const area = make("textarea", "", { readonly: "", class: "skip" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  for (const line of all(".line")) {
    const button = make("button", "Copy", { type: "button" });
    button.addEventListener("click", async () => {
      const text = one("code", line).textContent;
      let done = false;
      try { await navigator.clipboard.writeText(text); done = true; } catch (_) { done = fallback(text); }
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    line.append(button);
  }

  // A link into a closed part opens it.
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    target.scrollIntoView();
    const summary = target.tagName === "DETAILS" && one("summary", target);
    if (summary) summary.focus({ preventScroll: true });
  };
  addEventListener("hashchange", reveal);
  for (const link of all('a[href^="#"]')) link.addEventListener("click", () => { if (link.hash === location.hash) reveal(); });
  reveal();

  // On paper every finding is open.
  addEventListener("beforeprint", () => {
    for (const finding of all("details.finding:not([open])")) { finding.open = true; finding.dataset.printed = "1"; }
  });
  addEventListener("afterprint", () => {
    for (const finding of all("details.finding[data-printed]")) { finding.open = false; delete finding.dataset.printed; }
  });
})();
