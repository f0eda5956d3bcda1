// Exercises that need no code. The checker was asked beforehand; here it is looked up.
(() => {
  for (const section of document.querySelectorAll(".exercise")) {
    const sheet = section.querySelector('script[type="application/json"]');
    if (sheet) answerable(section, JSON.parse(sheet.textContent));
  }

  function answerable(section, sheet) {
    const name = `refimpl:exercise:${section.dataset.key}`;
    const form = section.querySelector("form.answer");
    const buttons = section.querySelectorAll("button[value]");
    const output = form.querySelector("output");

    function answer(given) {
      const reply = replyTo(sheet, given);
      const right = reply.startsWith("✓");
      output.replaceChildren(...reply.split("`").map(codeOrWords));
      for (const button of buttons) {
        button.setAttribute("aria-pressed", button.value === given);
      }
      section.dataset.answer = right ? "right" : "wrong";
      section.classList.toggle("done", right);
      if (!right) return;
      section.querySelectorAll(".answered").forEach((fold) => (fold.open = true));
      remember(name);
    }

    for (const button of buttons) {
      button.setAttribute("aria-pressed", false);
      button.addEventListener("click", () => answer(button.value));
    }
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer([...form.querySelectorAll("input, select")].map(written).join(", "));
    });
    section.classList.toggle("done", remembered(name));
  }

  // In a number a comma is a decimal point, and a minus may be typed as one.
  function written(field) {
    if (field.localName === "select") return field.value;
    return field.value.trim().replace(",", ".").replace("−", "-");
  }

  function replyTo(sheet, given) {
    if (sheet.choices) return sheet.replies[given];
    const row = sheet.replies.find(([low, high]) => low <= given && given <= high);
    return row ? row[2] : sheet.otherwise.replace("{}", given);
  }

  // A reply has code between backticks.
  function codeOrWords(text, n) {
    return n % 2 ? Object.assign(document.createElement("code"), { textContent: text }) : text;
  }

  // A browser may keep nothing: then a right answer lasts for this page.
  function remember(name) {
    try {
      localStorage.setItem(name, "right");
    } catch {}
    dispatchEvent(new CustomEvent("exercise", { detail: name }));
  }

  function remembered(name) {
    try {
      return localStorage.getItem(name) === "right";
    } catch {
      return false;
    }
  }
})();
