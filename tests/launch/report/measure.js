// What a person would see wrong: texts on texts, cut texts, pale texts, a page too wide.
(() => {
  const shown = (element) => {
    const style = getComputedStyle(element);
    if (element.closest('thead') && getComputedStyle(element.closest('thead')).clipPath !== 'none') return false;
    return style.visibility !== 'hidden' && element.checkVisibility();
  };
  const place = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    const box = element instanceof SVGElement ? element.getBoundingClientRect() : range.getBoundingClientRect();
    return { left: box.left + scrollX, right: box.right + scrollX, top: box.top + scrollY, bottom: box.bottom + scrollY };
  };
  const words = (element) => element.textContent.replace(/\s+/g, ' ').trim();
  const drawn = [...document.querySelectorAll('svg text')].filter((text) => words(text) && shown(text));
  const written = [...document.querySelectorAll('h1, h2, h3, h4, p, figcaption, th, td, dt, dd, li, .axt, .name, .share, .stage')]
    .filter((element) => words(element) && shown(element) && !element.querySelector('svg, p, h4'));
  const boxes = [...drawn, ...written].map((element) => ({ element, ...place(element) }))
    .filter((box) => box.right > box.left && box.bottom > box.top);

  // Boxes are as tall as a line; letters fill the middle of it.
  const meet = (one, two) => Math.min(one.right, two.right) - Math.max(one.left, two.left) > 0.5
    && Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top) > 3.5;
  const overlaps = [];
  boxes.forEach((one, at) => boxes.slice(at + 1).forEach((two) => {
    if (!(one.element instanceof SVGElement) && !(two.element instanceof SVGElement)) return;
    if (one.element.contains(two.element) || two.element.contains(one.element)) return;
    if (meet(one, two)) overlaps.push(`${words(one.element)} | ${words(two.element)}`);
  }));

  const wide = document.documentElement.clientWidth;
  const scrolls = (element) => element.closest('.scroll') !== null;
  const cut = boxes.filter((box) => (box.right > wide + 0.5 || box.left < -0.5) && !scrolls(box.element))
    .map((box) => words(box.element));

  const rgb = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const light = (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const over = (top, alpha, below) => below.map((part, at) => alpha * top[at] + (1 - alpha) * part);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, alpha = 1] = rgb(getComputedStyle(at).backgroundColor);
      if (alpha > 0.5) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const contrast = (one, two) => {
    const [high, low] = [luminance(one), luminance(two)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  // What a text of a drawing stands on: the last bar under its middle, else the page.
  const under = (text) => {
    const style = getComputedStyle(text), halo = rgb(style.stroke);
    if (style.stroke !== 'none' && parseFloat(style.strokeWidth) >= 3) return halo;
    const box = place(text), [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
    let found = ground(text.ownerSVGElement);
    for (const bar of text.ownerSVGElement.querySelectorAll('rect')) {
      const at = place(bar), look = getComputedStyle(bar);
      if (bar.closest('defs') || !look.fill.startsWith('rgb') || bar.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_PRECEDING) continue;
      if (at.left <= x && x <= at.right && at.top <= y && y <= at.bottom) found = over(rgb(look.fill), Number(look.fillOpacity), found);
    }
    return found;
  };
  const pale = [];
  for (const box of boxes) {
    const svg = box.element instanceof SVGElement, style = getComputedStyle(box.element);
    const ratio = contrast(rgb(svg ? style.fill : style.color), svg ? under(box.element) : ground(box.element));
    if (ratio < 4.3) pale.push(`${words(box.element).slice(0, 60)}: ${ratio.toFixed(2)}`);
  }
  for (const bar of document.querySelectorAll('svg rect.m')) {
    const look = getComputedStyle(bar);
    if (!look.fill.startsWith('rgb') || !shown(bar) || bar.classList.contains('half')) continue;
    const ratio = contrast(rgb(look.fill), ground(bar.ownerSVGElement));
    if (ratio < 2.9) pale.push(`bar ${bar.getAttribute('class')}: ${ratio.toFixed(2)}`);
  }
  return { overlaps, cut, pale, texts: boxes.length, drawn: drawn.length,
    wide: document.documentElement.scrollWidth, has: wide, paper: getComputedStyle(document.body).backgroundColor };
})()
