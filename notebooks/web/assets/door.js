/* The start page's run: a reader trains it by dragging, under either reward. The data
   are stored; notebooks/web/two_rewards.py made them. */
"use strict";

(() => {
  const door = document.querySelector(".door");
  const runs = JSON.parse(door.querySelector("script").textContent);
  const slider = door.querySelector("[type=range]");
  const output = door.querySelector("output");
  const button = door.querySelector("button");
  const last = Number(slider.max);
  const PACE = 260; // ms per round, when the button trains

  const HABITS = { "#": "a guess", "?": "rambling" };
  const habit = (text) => HABITS[text[0]] ?? "worked out";
  const counted = (text) => {
    const steps = text.split(";").length - 1; // the pay is a sixth for each, up to six
    return steps === 1 ? "1 step" : `${steps} steps`;
  };
  const hundred = (share) => `${Math.round(100 * share)} of 100`;

  const chart = door.querySelector(".door-chart");
  chart.insertAdjacentHTML(
    "beforeend",
    `<svg role="img" viewBox="0 0 ${last} 1" preserveAspectRatio="none">
      <path class="all" d="M0 0H${last}"/>
      <path class="right"/><path class="paid"/>
      <path class="right now"/><path class="paid now"/></svg>`,
  );
  const svg = chart.querySelector("svg");
  const draw = (kind, stops) => {
    const points = stops.map((stop, round) => `${round} ${1 - stop[kind]}`);
    const [line, now] = svg.querySelectorAll(`.${kind}`);
    line.setAttribute("d", `M${points.join("L")}`);
    now.setAttribute("d", `M${points.at(-1)}h0`);
    chart.querySelector(`.${kind} b`).textContent = stops.at(-1)[kind].toFixed(2);
  };

  /* What is true at this round, in a sentence or two. */
  function said(pay, stops) {
    const { right, paid } = stops.at(-1);
    const best = Math.max(...stops.map((stop) => stop.right));
    if (stops.length === 1)
      return "Untrained, it guesses, works the sum out, or rambles about other sums. Train it: what happens to the right answers?";
    if (pay === "right") {
      const wobble = best - right > 0.05 ? ` It was ${hundred(best)} earlier: training is not smooth.` : "";
      return `What is paid is what was meant: ${hundred(right)} answers are right.${wobble}`;
    }
    if (paid > 0.9 && right < 0.03)
      return "You meant right answers and paid for steps. It earns nearly all that can be paid, and almost nothing is right: it learned what is paid, not what was meant.";
    if (right < stops[0].right)
      return `It earns more and more, and fewer answers are right than before training: ${hundred(right)}.`;
    if (best - right > 0.05) return "It still earns more with every round. But look at the share that is right.";
    return `It shows more steps, and more of its answers are right: ${hundred(right)}. So far, so good.`;
  }

  function show() {
    const round = Number(slider.value);
    const pay = door.querySelector("[name=pay]:checked").value;
    const stops = runs[pay].slice(0, round + 1);
    output.textContent = `${round} of ${last} rounds`;
    slider.setAttribute("aria-valuetext", output.textContent);
    ["right", "paid"].forEach((kind) => draw(kind, stops));
    const { paid, right, answers } = stops.at(-1);
    svg.setAttribute("aria-label", `After ${output.textContent}: paid ${paid}, right ${right}`);
    door.querySelectorAll(".door-answers li").forEach((item, i) => {
      const [text, worth, isRight] = answers[i];
      item.dataset.right = isRight;
      item.querySelector("span").textContent = text;
      const steps = pay === "steps" ? `, ${counted(text)}` : "";
      const about = `${isRight ? "✓" : "✗"} ${habit(text)}${steps}: paid ${worth.toFixed(2)}`;
      item.querySelector("small").textContent = about;
    });
    const sentence = said(pay, stops);
    const caption = door.querySelector("figcaption");
    if (caption.textContent !== sentence) caption.textContent = sentence;
  }

  let timer = 0;
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    button.textContent = "Train";
  };
  const step = () => {
    slider.value = Number(slider.value) + 1;
    if (Number(slider.value) === last) stop();
    show();
  };
  button.addEventListener("click", () => {
    if (timer) return stop();
    if (Number(slider.value) === last) slider.value = 0;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      slider.value = last;
      return show();
    }
    button.textContent = "Stop";
    timer = setInterval(step, PACE);
    show();
  });
  slider.addEventListener("input", () => {
    stop();
    show();
  });
  door.addEventListener("change", show);

  for (const item of door.querySelectorAll(".door-answers li"))
    item.querySelector("span").before(document.createElement("small"));
  show();
})();
