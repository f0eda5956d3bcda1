// Elements of a page, and of a drawing in it.
window.elements = {
  make(name, settings = {}, ...inside) {
    const element = Object.assign(document.createElement(name), settings);
    element.append(...inside);
    return element;
  },
  draw(name, settings, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(settings)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  },
};
