// An extra: sort the values by a column, find a key. The page is complete without it.
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
