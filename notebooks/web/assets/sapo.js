/* SAPO's explorer computes what it shows: see notebooks/web/sapo.py. */
"use strict";

/* The share of a token's push that is left. One-sided: 1 where the token comes back. */
function sapoGate(kind, tau, sign, r) {
  if (kind === "one-sided" && (r - 1) * sign < 0) return 1;
  return 1 / Math.cosh((tau * (r - 1)) / 2) ** 2;
}

explorer.models.sapo = ({ model, controls }, floats) => {
  const columns = model.columns.map((one) => {
    const push = floats(one.push);
    return {
      ...one,
      push,
      ratio: Float64Array.from(floats(one.z), Math.exp),
      aside: floats(one.aside),
      lift: floats(one.lift),
      g: new Float64Array(one.count),
      places: { x: new Float64Array(one.count), y: new Float64Array(one.count) },
      heights: new Float64Array(one.grid.length),
    };
  });
  const same = (gate, [kind, pos, neg]) =>
    gate.kind === kind && gate.taus[0] === pos && gate.taus[1] === neg;

  /* The stored arm of the same kind whose temperatures' logarithms are nearest. */
  function nearest(gate) {
    const far = ([, pos, neg]) =>
      Math.hypot(Math.log(gate.taus[0] / pos), Math.log(gate.taus[1] / neg));
    const arms = model.arms.filter(([kind]) => kind === gate.kind);
    return arms.reduce((best, arm) => (far(arm) < far(best) ? arm : best));
  }

  /* What passes of the push of the tokens that moved on, and of those that came back. */
  function shares(k) {
    const left = [0, 0];
    const all = [0, 0];
    for (const { sign, ratio, push, g, count } of columns) {
      for (let i = 0; i < count; i++) {
        const r = ratio[k * count + i];
        const on = (r - 1) * sign;
        if (Math.abs(on) <= model.edge) continue;
        const part = on > 0 ? 0 : 1;
        left[part] += g[i] * r * push[i];
        all[part] += r * push[i];
      }
    }
    return left.map((sum, part) => sum / all[part]);
  }

  function tokens(column, kind, tau, k) {
    const { sign, ratio, g, places, heights } = column;
    for (let i = 0; i < column.count; i++) {
      const r = ratio[k * column.count + i];
      g[i] = sapoGate(kind, tau, sign, r);
      const across = Math.min(r + column.aside[i], column.limit);
      places.x[i] = column.x[0] + column.x[1] * across;
      places.y[i] = column.y[0] + column.y[1] * (g[i] + column.lift[i]);
    }
    column.grid.forEach((r, i) => {
      heights[i] = column.y[0] + column.y[1] * sapoGate(kind, tau, sign, r);
    });
  }

  /* A dot's area is its push, its colour its gate. */
  const dots = (column, k) => (ctx) => {
    const { clip, ratio, push, g, places, shades, area } = column;
    ctx.save();
    ctx.beginPath();
    ctx.rect(...clip);
    ctx.clip();
    for (let i = 0; i < column.count; i++) {
      const size = Math.min(area[0] * ratio[k * column.count + i] * push[i], area[1]);
      ctx.beginPath();
      ctx.arc(places.x[i], places.y[i], Math.sqrt(size) / 2, 0, 2 * Math.PI);
      ctx.fillStyle = shades[Math.round(g[i] * model.shades)];
      ctx.fill();
    }
    ctx.restore();
  };

  return (stops, drawn) => {
    const chosen = Object.fromEntries(controls.map((c, i) => [c.name, c.stops[stops[i]]]));
    const label = Object.fromEntries(controls.map((c, i) => [c.name, c.labels[stops[i]]]));
    const gate = { kind: chosen.gate, taus: [chosen.tau_pos, chosen.tau_neg] };
    const { k } = chosen;
    const known = model.known.find((one) => same(gate, one));
    const look = model.looks[known ? known[3] : "yours"];
    const { at } = model;
    columns.forEach((column, i) => {
      tokens(column, gate.kind, gate.taus[i], k);
      Object.assign(drawn[at.dots[i]], column.places, { paint: dots(column, k) });
      const line = [{ ...look.line[0], clip: column.clip }];
      Object.assign(drawn[at.line[i]], { y: column.heights, look: line });
    });
    const kept = shares(k);
    kept.forEach((share, i) => {
      const [left, whole] = model.bars[i];
      const fill = drawn[at.fill[i]];
      const end = Math.floor(left + whole * (share || 0) + 0.5) + (fill.x[0] % 1);
      fill.x = [fill.x[0], end, end, fill.x[3], 0];
      const { fill: colour, stroke } = look.fill[0];
      fill.look = [{ ...fill.look[0], fill: colour, stroke }];
      const text = Number.isNaN(share) ? "–" : `${(100 * share).toFixed(0)} %`;
      Object.assign(drawn[at.share[i]], { text: [[text, 999]], look: look.share });
    });
    model.marks[k].forEach((x, i) => {
      drawn[at.marks[i]].x = x.map((z) => z ?? NaN); // NaN: there was no push
    });
    drawn[at.stroke[0]].look = look.stroke;
    const taus = [...new Set([label.tau_pos, label.tau_neg])].join(" / ");
    const text = [[`${gate.kind} ${taus}`, 999]];
    Object.assign(drawn[at.name[0]], { text, look: look.name });
    const words = drawn[at.title[0]].text[0].slice(1);
    const [on, back] = kept.map((share) => `${(100 * share).toFixed(0)} %`);
    const moved = `keeps ${on} of what moves on, ${back} of what comes back`;
    const title = Number.isNaN(kept[0])
      ? `${gate.kind} ${taus}: before the first update no token has moved`
      : `${gate.kind} ${taus} ${moved}`;
    drawn[at.title[0]].text = [[title, ...words]];
    const stored = nearest(gate)[3];
    for (const part in stored) Object.assign(drawn[at.stored[part]], stored[part]);
    return { g: columns.map((column) => column.g), shares: kept };
  };
};
