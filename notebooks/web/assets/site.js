// The menu, the theme, copy buttons and the search. Nothing here needs a network.
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

  // The index is read when somebody first searches.
  const query = document.getElementById("query");
  const results = document.getElementById("results");
  let sections = null;
  let loading = false;

  window.searchIndex = (rows) => {
    sections = rows.map(([file, page, anchor, heading, text]) => ({
      file, page, anchor, heading, text,
      low: [page, heading, text].map((part) => part.toLowerCase()),
    }));
    show();
  };

  function load() {
    if (sections || loading) return;
    loading = true;
    document.head.append(make("script", { src: "search-index.js" }));
  }

  function points(section, words) {
    // The words side by side count more, and a chapter explains what others list.
    let sum = 10 * section.low[2].includes(words.join(" ")) + 8 * /^\d/.test(section.file);
    for (const word of words) {
      const [page, heading, text] = section.low;
      const times = text.split(word).length - 1;
      const one = 8 * page.includes(word) + 12 * heading.includes(word) + Math.min(times, 6);
      if (!one) return 0; // every word must occur
      sum += one;
    }
    return sum;
  }

  function excerpt(section, word) {
    const at = section.low[2].indexOf(word);
    const from = Math.max(0, at - 60);
    return (from ? "… " : "") + section.text.slice(from, from + 160) + " …";
  }

  function show() {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    results.hidden = !words.length;
    if (!words.length || !sections) return;
    const found = sections
      .map((section) => [points(section, words), section])
      .filter(([sum]) => sum)
      .sort(([a], [b]) => b - a)
      .slice(0, 20);
    const list = make("ul");
    for (const [, section] of found) {
      const item = make("li");
      item.append(
        make("a", {
          href: `${section.file}#${section.anchor}`,
          textContent: `${section.page} › ${section.heading}`,
        }),
        make("p", { textContent: excerpt(section, words[0]) }),
      );
      list.append(item);
    }
    const count = found.length === 20 ? "The best 20" : found.length || "Nothing";
    results.replaceChildren(make("p", { textContent: `${count} found` }), list);
  }

  query.addEventListener("focus", load);
  query.addEventListener("input", () => {
    load();
    show();
  });
  query.form.addEventListener("submit", (event) => {
    event.preventDefault();
    results.querySelector("a")?.click();
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      query.value = "";
      show();
    } else if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) {
      event.preventDefault();
      query.focus();
    }
  });
})();
