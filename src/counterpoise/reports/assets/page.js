"use strict";
(() => {
  const { charts, templates } = JSON.parse(document.getElementById("payload").textContent);
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const asked = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 44rem)");
  const widths = { page: 688, column: 336 }; // 18.2 and 8.9 cm
  const touch = matchMedia("(pointer: coarse)");
  const config = { responsive: true, displayModeBar: false, doubleClick: "reset" };
  let chosen = null; // by hand, if it differs from the system's theme
  let printing = false;
  let folded = [];
  let drawn = Promise.resolve();

  const theme = () => (printing ? "light" : chosen ?? (asked.matches ? "dark" : "light"));
  const choice = (key) =>
    [...document.querySelectorAll(`[data-chart="${key}"] .switch`)]
      .map((one) => one.querySelector("[aria-pressed=true]").value).join("|");

  // A method's colour as text: nearer to the ink, because some colours are too pale for letters.
  function legible(colour, look) {
    const ink = look === "dark" ? 235 : 20;
    const part = (at) => Math.round(0.6 * parseInt(colour.slice(at, at + 2), 16) + 0.4 * ink);
    return `rgb(${[1, 3, 5].map(part)})`;
  }

  function figure(key, name, look) {
    const { data, layout } = charts[key][name];
    const copy = structuredClone(layout);
    for (const notes of [copy.annotations, copy.meta?.narrow?.annotations]) {
      for (const note of notes ?? []) if (note.font?.color) note.font.color = legible(note.font.color, look);
    }
    return { data: structuredClone(data), layout: { ...copy, template: templates[look] } };
  }

  function draw(key) {
    const { data, layout } = figure(key, choice(key), theme());
    if (narrow.matches && !printing) stack(data, layout);
    if (touch.matches) layout.dragmode = false; // a finger scrolls the page
    if (printing) Object.assign(layout, { width: 660, height: paper(layout.height) });
    else layout.autosize = true; // also after printing, when the chart has a width
    const place = document.getElementById(`chart-${key}`);
    place.style.minHeight = `${layout.height}px`;
    drawn = Promise.all([drawn, Plotly.react(place, data, layout, config).then(() => point(place))]);
    return drawn;
  }

  // A tall chart is lower on paper, so that fewer pages end half empty.
  const paper = (height) => Math.min(height > 300 ? Math.max(300, 0.9 * height) : height, 860);

  // Where there is no room beside: panels below one another, and a legend instead of names at the ends of lines.
  function stack(data, layout) {
    merge(layout, layout.meta?.narrow ?? {});
    for (const trace of data) if (trace.name) trace.name = short(trace.name);
    for (const note of layout.annotations ?? []) note.text = short(note.text);
  }
  const short = (text, most = 36) => (text.length <= most ? text : `${text.slice(0, most / 2 - 1)}…${text.slice(-most / 2)}`);
  function merge(into, from) {
    for (const [key, value] of Object.entries(from)) {
      if (value === null) delete into[key];
      else if (typeof value === "object" && !Array.isArray(value)) into[key] = merge(into[key] ?? {}, value);
      else into[key] = value;
    }
    return into;
  }

  // A line that is pointed at shows its band.
  function point(place) {
    if (place.dataset.pointed) return;
    place.dataset.pointed = "yes";
    const bands = (group) => place.data.flatMap((one, i) => (one.fill && one.legendgroup === group ? [i] : []));
    let hidden = [];
    place.on("plotly_hover", ({ points }) => {
      hidden = bands(points[0].data.legendgroup).filter((i) => place.data[i].opacity === 0);
      if (hidden.length) Plotly.restyle(place, { opacity: 1 }, hidden);
    });
    place.on("plotly_unhover", () => {
      const shown = hidden.filter((i) => i < place.data.length);
      if (shown.length) Plotly.restyle(place, { opacity: 0 }, shown);
      hidden = [];
    });
  }

  function dress() {
    root.classList.toggle("dark", theme() === "dark");
    button.textContent = theme() === "dark" ? "Light" : "Dark";
    return Promise.all(Object.keys(charts).map(draw));
  }

  // A chart as a data URL for a paper: light, without a title, as wide as a column or a page of two columns.
  async function image(key, name, format, wide = "page", scale = 3) {
    const { data, layout } = figure(key, name, "light");
    layout.paper_bgcolor = "#fff";
    if (wide === "column") stack(data, layout);
    const size = { width: widths[wide], height: layout.height };
    return Plotly.toImage({ data, layout, config }, { format, scale: format === "svg" ? 1 : scale, ...size });
  }

  function save(key, format, wide) {
    const name = choice(key);
    image(key, name, format, wide).then((url) => {
      const link = document.createElement("a");
      link.href = url;
      link.download = charts[key][name].file + (wide === "column" ? "-column." : ".") + format;
      link.click();
    });
  }

  document.addEventListener("click", (event) => {
    const pressed = event.target.closest("button");
    const key = pressed?.closest("figure")?.dataset.chart;
    if (pressed?.id === "print") {
      print();
    } else if (pressed === button) {
      const other = theme() === "dark" ? "light" : "dark";
      chosen = (other === "dark") === asked.matches ? null : other;
      dress();
    } else if (pressed?.dataset.save) {
      save(key, pressed.dataset.save, pressed.dataset.width);
    } else if (pressed && key) {
      for (const one of pressed.parentElement.querySelectorAll("button")) one.setAttribute("aria-pressed", one === pressed);
      draw(key);
    }
  });
  asked.addEventListener("change", dress);
  narrow.addEventListener("change", dress);
  // Printing waits for no promise, and a legend finds its place only when drawn a second time.
  addEventListener("beforeprint", () => {
    printing = true;
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((one) => { one.open = true; });
    dress();
    dress();
  });
  addEventListener("afterprint", () => {
    printing = false;
    folded.forEach((one) => { one.open = false; });
    dress();
  });

  // The contents stay in sight and mark the section being read.
  const links = new Map([...document.querySelectorAll("nav a")].map((one) => [one.hash.slice(1), one]));
  links.values().next().value?.toggleAttribute("aria-current", true);
  const reading = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (!isIntersecting) continue;
      for (const [key, link] of links) link.toggleAttribute("aria-current", key === target.id);
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  document.querySelectorAll("main > section").forEach((one) => reading.observe(one));

  // For scripts that drive the page: every chart is drawn, and two frames have passed.
  const settled = () =>
    new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))).then(() => drawn).then(() => true);

  window.counterpoise = { image, settled, ready: dress() };
})();
