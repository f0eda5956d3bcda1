// Arrow keys, space and the page keys go from slide to slide.
(() => {
  const slides = [...document.querySelectorAll(".slides section")];
  const step = {
    ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1,
    ArrowLeft: -1, ArrowUp: -1, PageUp: -1,
  };
  const nearest = () => {
    const tops = slides.map((slide) => Math.abs(slide.getBoundingClientRect().top));
    return tops.indexOf(Math.min(...tops));
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || !(event.key in step)) return;
    if (event.target.closest("a, button, .math, .table")) return;
    const next = slides[nearest() + (event.shiftKey ? -1 : 1) * step[event.key]];
    if (!next) return;
    event.preventDefault();
    next.scrollIntoView();
  });
})();
