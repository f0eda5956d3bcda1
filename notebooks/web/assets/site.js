// The menu, the theme and copy buttons. Nothing here needs a network.
(() => {
  const root = document.documentElement;
  const make = (name, settings = {}) =>
    Object.assign(document.createElement(name), settings);

  const button = document.getElementById("theme");
  const other = () => (root.dataset.theme === "dark" ? "light" : "dark");
  const name = () => {
    button.textContent = other() === "dark" ? "Dark" : "Light";
  };
  button.addEventListener("click", () => {
    root.dataset.theme = other();
    name();
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // The choice then lasts for this page.
    }
  });
  name();

  const menu = document.getElementById("menu");
  const wide = matchMedia("(min-width: 1100px)");
  const unfold = () => {
    menu.open = wide.matches;
  };
  wide.addEventListener("change", unfold);
  unfold();

  for (const code of document.querySelectorAll("div.highlight")) {
    const copy = make("button", { type: "button", className: "copy", textContent: "Copy" });
    copy.addEventListener("click", async () => {
      await copied(code.querySelector("pre").textContent);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
    code.append(copy);
  }

  // A table that goes on to the right says so until its end is in sight.
  for (const box of document.querySelectorAll(".table")) {
    const more = () =>
      box.toggleAttribute("data-more", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
    box.addEventListener("scroll", more, { passive: true });
    new ResizeObserver(more).observe(box);
  }

  // A picture that was tapped, as wide as its letters need; the place tapped in sight.
  function enlarge(event) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const [small] = event.currentTarget.getElementsByTagName("img");
    const wide = Math.max(small.getAttribute("width"), innerWidth - 64);
    const large = make("img", { src: small.src, alt: small.alt, width: wide });
    const close = make("button", { type: "button", textContent: "Close" });
    const dialog = make("dialog", { className: "large", ariaLabel: "The picture, enlarged" });
    dialog.append(close, large);
    dialog.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    const across = event.detail ? event.offsetX / small.clientWidth : 0;
    dialog.scrollLeft = across * wide - innerWidth / 2;
  }
  for (const link of document.querySelectorAll("a.enlarge")) {
    link.addEventListener("click", enlarge);
  }

  async function copied(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
})();
