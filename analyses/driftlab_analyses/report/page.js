"use strict";
(() => {
  const ROWS = 500; // drawn at once; the count says how many there are

  // A filter is words that must all occur in a row, or comparisons such as nss>1e-4 or run=grpo.
  const parse = (text) => text.trim().split(/\s+/).filter(Boolean).map((word) => {
    const found = word.match(/^([^<>=]+)(<=|>=|<|>|=)(.+)$/);
    return found ? { column: found[1].toLowerCase(), sign: found[2], value: found[3].toLowerCase() }
      : { word: word.toLowerCase() };
  });

  const holds = (test, names, cells) => {
    if (test.word !== undefined) return cells.some((cell) => cell.text.toLowerCase().includes(test.word));
    const at = names.indexOf(test.column);
    if (at < 0) return false;
    const cell = cells[at];
    const wanted = Number(test.value);
    if (cell.value === null || Number.isNaN(wanted)) return test.sign === "=" && cell.text.toLowerCase() === test.value;
    if (test.sign === "<") return cell.value < wanted;
    if (test.sign === ">") return cell.value > wanted;
    if (test.sign === "<=") return cell.value <= wanted;
    if (test.sign === ">=") return cell.value >= wanted;
    return cell.value === wanted;
  };

  const compare = (left, right) => {
    if (left.value !== null && right.value !== null) return left.value - right.value;
    return left.text.localeCompare(right.text, undefined, { numeric: true });
  };

  // Missing values stay last whichever way the column is sorted.
  const sorted = (rows, at, direction) => rows.slice().sort((a, b) => {
    const [left, right] = [a[at], b[at]];
    if (left.text === "–" || right.text === "–") return (left.text === "–") - (right.text === "–");
    return direction * compare(left, right);
  });

  function control(host, names, chosen = []) {
    const bar = document.createElement("div");
    bar.className = "controls";
    const input = document.createElement("input");
    input.type = "search";
    input.placeholder = "Filter: words, or column>number";
    input.setAttribute("aria-label", `Filter rows; columns: ${names.join(", ")}`);
    const count = document.createElement("span");
    count.className = "count";
    count.setAttribute("role", "status");
    bar.append(...chosen, input, count);
    host.prepend(bar);
    return { input, count };
  }

  function makeTable(host, names, numeric, rows, head, body, chosen = []) {
    const { input, count } = control(host, names, chosen);
    const lower = names.map((name) => name.toLowerCase());
    const state = { at: -1, direction: 1, rows };
    const draw = () => {
      const tests = parse(input.value);
      const kept = state.rows.filter((row) => tests.every((test) => holds(test, lower, row)));
      const shown = state.at < 0 ? kept : sorted(kept, state.at, state.direction);
      body.replaceChildren(...shown.slice(0, ROWS).map((row) => {
        const line = document.createElement("tr");
        line.append(...row.map((cell, i) => {
          const td = document.createElement("td");
          td.textContent = cell.text;
          if (numeric[i]) td.className = "number";
          if (cell.value !== null) { td.dataset.value = cell.value; td.title = cell.value; }
          return td;
        }));
        return line;
      }));
      const more = shown.length > ROWS ? `, the first ${ROWS} shown` : "";
      count.textContent = `${shown.length} of ${state.rows.length} rows${more}`;
    };
    [...head.cells].forEach((th, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = th.textContent;
      th.replaceChildren(button);
      button.addEventListener("click", () => {
        state.direction = state.at === i ? -state.direction : 1;
        state.at = i;
        [...head.cells].forEach((other) => other.removeAttribute("aria-sort"));
        th.setAttribute("aria-sort", state.direction > 0 ? "ascending" : "descending");
        draw();
      });
    });
    input.addEventListener("input", draw);
    draw();
    return (next) => { state.rows = next; draw(); };
  }

  for (const host of document.querySelectorAll(".table")) {
    const table = host.querySelector("table");
    const head = table.tHead.rows[0];
    const names = [...head.cells].map((th) => th.textContent);
    const numeric = [...head.cells].map((th) => th.classList.contains("number"));
    const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((td) => ({
      text: td.textContent, value: "value" in td.dataset ? Number(td.dataset.value) : null,
    })));
    if (rows.length > 5) makeTable(host, names, numeric, rows, head, table.tBodies[0]);
  }

  for (const host of document.querySelectorAll(".explorer")) {
    const data = JSON.parse(document.getElementById(host.dataset.source).textContent);
    const names = data.columns;
    const numeric = data.numeric;
    const cell = (value, i) => {
      if (value === null) return { text: "–", value: null };
      return numeric[i] ? { text: Number(value.toPrecision(4)).toString(), value } : { text: String(value), value: null };
    };
    const select = document.createElement("select");
    select.setAttribute("aria-label", "Checkpoint");
    select.append(...data.groups.map((group, i) => new Option(group.name, i)));
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    names.forEach((name, i) => {
      const th = document.createElement("th");
      th.scope = "col";
      th.textContent = name;
      if (numeric[i]) th.className = "number";
      head.append(th);
    });
    scroll.append(table);
    host.append(scroll);
    const rowsOf = (i) => data.groups[i].rows.map((row) => row.map(cell));
    select.value = data.groups.length - 1;
    const show = makeTable(host, names, numeric, rowsOf(select.value), head, table.createTBody(), [select]);
    select.addEventListener("change", () => show(rowsOf(select.value)));
  }
})();
