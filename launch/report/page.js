// Extras: sort the values by a column, find a key, say the values of curves under a
// pointer. The page is complete without them.
const table = document.getElementById('values');
const heads = table ? [...table.tHead.rows[0].cells] : [];
heads.forEach((head, column) => {
  const button = document.createElement('button');
  button.type = 'button';
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener('click', () => {
    const up = head.getAttribute('aria-sort') !== 'ascending';
    heads.forEach((other) => other.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const text = (row) => row.cells[column].textContent.trim();
    const rows = [...table.tBodies[0].rows].sort(
      (a, b) => (up ? 1 : -1) * text(a).localeCompare(text(b), 'en', { numeric: true }));
    table.tBodies[0].append(...rows);
  });
});
const find = document.getElementById('find');
if (find) {
  find.closest('label').hidden = false;
  find.addEventListener('input', () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...table.tBodies[0].rows];
    const hits = rows.filter((row) => {
      const hit = words.every((word) => row.textContent.toLowerCase().includes(word));
      row.classList.toggle('hide', !hit);
      return hit;
    });
    document.getElementById('found').textContent = words.length ? `${hits.length} found` : '';
  });
}
document.querySelectorAll('.pad > svg').forEach((plot) => {
  const inner = plot.querySelector('svg[data-x]');
  if (!inner) return;
  const first = plot.closest('figure').querySelectorAll('polyline[data-values]');
  const curves = [...inner.querySelectorAll('polyline')].map((line, n) => ({
    name: line.dataset.name,
    look: line.classList[1].replace('s-', 't-'),
    values: first[n].dataset.values.split(' ').map((pair) => pair.split(',').map(Number)),
    places: line.getAttribute('points').split(' ').map((pair) => pair.split(',').map(Number)),
  }));
  const box = document.createElement('div');
  box.className = 'hover';
  let marks = [];
  const draw = (kind, attributes) => {
    const mark = document.createElementNS(plot.namespaceURI, kind);
    Object.entries(attributes).forEach(([key, value]) => mark.setAttribute(key, value));
    marks.push(mark);
    plot.append(mark);
  };
  const leave = () => { box.remove(); marks.forEach((mark) => mark.remove()); marks = []; };
  const move = (event) => {
    leave();
    const area = plot.getBoundingClientRect();
    const share = 100 * (event.clientX - area.left) / area.width;
    const near = curves.map(({ places }) => places.reduce(
      (best, place, at) => (Math.abs(place[0] - share) < Math.abs(places[best][0] - share) ? at : best), 0));
    // The curve with the nearest point says where; others that have none there are left out.
    const gap = (n) => Math.abs(curves[n].places[near[n]][0] - share);
    const best = near.map((_, n) => n).reduce((one, two) => (gap(two) < gap(one) ? two : one), 0);
    const x = curves[best].places[near[best]][0];
    const at = curves[best].values[near[best]][0];
    const epoch = Number(inner.dataset.epoch);
    const lines = [`${inner.dataset.x} ${at.toLocaleString('en')}${epoch ? `, epoch ${(at / epoch).toFixed(2)}` : ''}`];
    draw('line', { class: 'at', x1: `${x}%`, x2: `${x}%`, y1: 0, y2: '100%' });
    curves.forEach((curve, n) => {
      const place = curve.places[near[n]];
      if (Math.abs(place[0] - x) > 2) return;
      draw('circle', { class: `dot ${curve.look}`, cx: `${place[0]}%`, cy: `${place[1]}%`, r: 4 });
      lines.push(`${curve.name ? `${curve.name} ` : ''}${curve.values[near[n]][1].toLocaleString('en', { maximumSignificantDigits: 4 })}`);
    });
    box.textContent = lines.join('\n');
    plot.parentElement.append(box);
    // On the side that has more room, beside the line.
    const left = plot.offsetLeft || area.left - plot.parentElement.getBoundingClientRect().left;
    box.style.left = `${left + area.width * x / 100 + (x < 50 ? 8 : -8 - box.offsetWidth)}px`;
  };
  plot.addEventListener('pointermove', move);
  plot.addEventListener('pointerdown', move);
  plot.addEventListener('pointerleave', leave);
});
