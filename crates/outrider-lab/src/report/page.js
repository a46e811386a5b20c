for (const th of document.querySelectorAll("th")) {
  th.querySelector("button").addEventListener("click", () => {
    const table = th.closest("table"), body = table.tBodies[0], at = th.cellIndex;
    const up = th.getAttribute("aria-sort") !== "ascending";
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = row => row.cells[at].dataset.v ?? row.cells[at].textContent;
    const lines = [...body.rows];
    lines.sort((a, b) => {
      const p = key(a), q = key(b);
      if (p === "" || q === "") return (p === "") - (q === "");
      const by = Number.isNaN(p - q) ? p.localeCompare(q, "en", { numeric: true }) : p - q;
      return up ? by : -by;
    });
    body.append(...lines);
  });
}
