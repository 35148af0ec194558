// Headings of sortable tables as buttons: a click puts the rows in order, another one turns it round.
(() => {
  const number = (text) => parseFloat(text.replace(/−/g, "-").replace(/,/g, ""));
  const compare = (x, y) => {
    const [a, b] = [number(x), number(y)];
    return Number.isNaN(a) || Number.isNaN(b) ? x.localeCompare(y, "en", { numeric: true }) : a - b;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], rows = [...body.rows];
    heads.forEach((head, i) => {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const down = now ? now === "ascending" : head.classList.contains("num");
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        rows.sort((a, b) => {
          const [x, y] = [a, b].map((row) => row.cells[i].textContent.trim());
          if (x === "—" || y === "—") return (x === "—") - (y === "—"); // what is missing comes last either way
          return compare(x, y) * (down ? -1 : 1);
        });
        body.append(...rows);
      });
    });
  }
})();
