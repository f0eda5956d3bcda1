// The ledger's filters, and a sortable table over the stored runs with their curves.
window.ledger = (cells) => {
  const at = (id) => document.getElementById(id);
  const { make, draw } = window.elements;
  const STEP = 100;
  const runs = cells.flatMap((cell) =>
    cell.runs.map(([start, seed, reward, accuracy, bytes]) => ({
      ...cell, cell, start, seed, bytes, reward: reward / 1000, accuracy: accuracy / 1000,
    })),
  );
  const curve = (run) => Array.from(atob(run.bytes), (byte) => byte.charCodeAt(0) / 250);

  // The claims: rows that do not fit the two choices are hidden.
  const claims = [...document.querySelectorAll("[data-verdict]")];
  const choose = () => {
    const [verdict, method] = [at("verdict").value, at("method").value];
    for (const claim of claims) {
      const fits =
        (!verdict || claim.dataset.verdict === verdict) &&
        (!method || claim.dataset.methods.split("|").includes(method));
      claim.closest("tr").hidden = !fits;
    }
  };
  for (const name of ["verdict", "method"]) at(name).addEventListener("change", choose);

  // The runs.
  const keys = [...document.querySelectorAll("#run-table [data-key]")];
  const body = document.querySelector("#run-table tbody");
  let sorted = { key: "", down: false };
  let limit = STEP;

  const chosen = () => {
    const [claim, arm, world] = ["of-claim", "of-arm", "of-world"].map((id) => at(id).value);
    const fitting = runs.filter(
      (run) =>
        (!claim || run.claims.includes(claim)) &&
        (!arm || run.arm === arm) &&
        (!world || run.world === world),
    );
    const { key, down } = sorted;
    if (!key) return fitting;
    const order = (a, b) =>
      typeof a[key] === "number" ? a[key] - b[key] : a[key].localeCompare(b[key]);
    return fitting.sort((a, b) => (down ? order(b, a) : order(a, b)));
  };

  const digits = { reward: 3, accuracy: 3 };
  const text = (run, key) => (digits[key] ? run[key].toFixed(digits[key]) : String(run[key]));

  function show() {
    const found = chosen();
    const rows = found.slice(0, limit).map((run) => {
      const button = make("button", { type: "button", textContent: run.arm });
      button.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-label", `${run.arm}: curve of start ${run.start}, seed ${run.seed}`);
      const row = make("tr", {}, make("th", { scope: "row" }, button));
      for (const { dataset } of keys.slice(1)) row.append(make("td", { textContent: text(run, dataset.key) }));
      button.addEventListener("click", () => toggle(row, button, run));
      return row;
    });
    body.replaceChildren(...rows);
    at("count").textContent = `${found.length} runs fit; ${rows.length} are shown.`;
    at("more").hidden = rows.length === found.length;
  }

  function toggle(row, button, run) {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) row.nextElementSibling.remove();
    else row.after(make("tr", {}, make("td", { colSpan: keys.length }, picture(run))));
  }

  function picture(run) {
    const [width, height, left] = [480, 130, 30];
    const x = (i, n) => left + (i * (width - left - 8)) / (n - 1);
    const y = (value) => 8 + (1 - value) * (height - 30);
    const line = (values) =>
      "M" + values.map((v, i) => `${x(i, values.length).toFixed(1)} ${y(v).toFixed(1)}`).join("L");
    const values = curve(run);
    const [first, last] = [values[0], values[values.length - 1]].map((v) => v.toFixed(2));
    const label =
      `Reward of ${values.length} rollouts: ${first} in the first, ${last} in the last, ` +
      `${Math.min(...values).toFixed(2)} at the lowest, ${Math.max(...values).toFixed(2)} at the highest.`;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    for (const one of run.cell.runs) svg.append(draw("path", { d: line(curve({ bytes: one[4] })) }));
    svg.append(
      draw("path", { class: "axis", d: `M${left} ${y(1)}V${y(0)}H${width - 8}` }),
      draw("path", { class: "one", d: line(values) }),
      draw("text", { x: left - 6, y: y(1) + 4, "text-anchor": "end" }, "1"),
      draw("text", { x: left - 6, y: y(0) + 4, "text-anchor": "end" }, "0"),
      draw("text", { x: left, y: height - 6 }, "reward by rollout, 1"),
      draw("text", { x: width - 8, y: height - 6, "text-anchor": "end" }, String(values.length)),
    );
    return svg;
  }

  const again = () => {
    limit = STEP;
    show();
  };
  for (const button of keys)
    button.addEventListener("click", () => {
      const { key } = button.dataset;
      sorted = { key, down: sorted.key === key && !sorted.down };
      for (const one of keys) one.closest("th").setAttribute("aria-sort", "none");
      button.closest("th").setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      again();
    });
  for (const name of ["of-claim", "of-arm", "of-world"]) at(name).addEventListener("change", again);
  at("more").addEventListener("click", () => {
    limit += STEP;
    show();
  });
  for (const button of document.querySelectorAll("[data-claim]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      for (const name of ["of-arm", "of-world"]) at(name).value = "";
      at("of-claim").value = button.dataset.claim;
      again();
      at("runs").scrollIntoView();
      at("of-claim").focus({ preventScroll: true });
    });
  }
  document.querySelector(".filters").hidden = false;
  at("stored").hidden = false;
  show();
};
