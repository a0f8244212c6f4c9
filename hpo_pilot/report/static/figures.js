// Draws figures from their specifications: the one script for the report and the monitor. It needs plotly.js.
//
//   hpoFigures.draw(element, spec) -> Promise     draws; what the element held is gone
//   hpoFigures.update(element, spec) -> Promise   draws newer data; zoom, brushes and hidden traces stay
//   hpoFigures.scaleSwitch(specs, changed)        a switch for the axes of figures of merit; null: none of these can be logarithmic
//   hpoFigures.rescale(element, scale)            draws them so: "log" or "linear"
//
// Each figure has a button that saves it as PNG, black on white.
//
// Before printing, all figures of the page get the size that common.css gives them on paper.
//
// A specification is plotly's {data, layout}. Parallel coordinates are drawn here on a 2D canvas: plotly's own need
// WebGL, and a page that allows code made from strings ('unsafe-eval'); without either they show nothing. Here they
// need neither, and brushes work by keyboard. A specification that has words alone becomes a small box. A brush tells the element: event "hpo:brush", detail {trials: [numbers]},
// or {trials: null} when nothing is brushed. A click on the mark of a trial: event "hpo:trial", detail {trial: number,
// search: its name, if the trace has it as meta; apart: whether the keys of the click ask for a new tab}.
"use strict";
(() => {
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = {
    displaylogo: false,
    displayModeBar: touch ? false : undefined,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "toImage"],  // there is a button for a picture
  };
  const axis = {automargin: true, gridcolor: "#dde2e8", linecolor: "#888", zerolinecolor: "#bbc2ca"};

  // --- plotly's figures ---

  const completed = ({data = [], layout = {}}) => {
    const full = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: {family: getComputedStyle(document.body).fontFamily, size: 12},
      hoverlabel: {bgcolor: "#1b1f24", bordercolor: "#1b1f24", font: {color: "#ffffff"}, align: "left"},
      hovermode: "closest",
      // Where a finger scrolls the page, it must not zoom the figure.
      dragmode: touch ? false : "zoom",
      uirevision: "kept",
      ...layout,
      margin: {l: 62, r: 12, t: layout.legend ? 34 : 8, b: 46, ...layout.margin},
    };
    for (const name of ["xaxis", "yaxis", "yaxis2"]) if (layout[name]) full[name] = {...axis, ...layout[name]};
    const broken = (text) => String(text).replaceAll("\n", "<br>");
    const traces = data.map((trace) => ({
      ...trace,
      ...(Array.isArray(trace.text) && !Array.isArray(trace.text[0]) ? {text: trace.text.map(broken)} : {}),
      ...(Array.isArray(trace.hovertext) ? {hovertext: trace.hovertext.map(broken)} : {}),
    }));
    return [traces, full];
  };

  // --- the scale of figures of merit ---

  // A logarithmic axis has no place for zero or less.
  const switchable = ({data = [], layout = {}}) => (layout.meta?.values ?? []).filter((name) => {
    const letter = name[0];
    const values = data.filter((trace) => (trace[name] ?? letter) === letter).flatMap((trace) => trace[letter] ?? []);
    return values.length && values.every((value) => value === null || value > 0);
  });
  const scale = (spec) => {
    const [first] = switchable(spec);
    return first && (spec.layout[first].type === "log" ? "log" : "linear");
  };
  const scaled = (spec, wanted) => {
    if (!wanted || !scale(spec)) return spec;
    const layout = {...spec.layout};
    for (const name of switchable(spec)) {
      const {range, tickmode, tickvals, ticktext, ...kept} = layout[name];
      if ((kept.type === "log") === (wanted === "log")) continue;
      // A zoom of the other scale would be in other units.
      layout[name] = {...kept, type: wanted, autorange: true, uirevision: wanted};
    }
    return {...spec, layout};
  };

  const clicked = (place, trial, event, search) => {
    const detail = {trial, search, apart: event.ctrlKey || event.metaKey || event.button === 1};
    place.dispatchEvent(new CustomEvent("hpo:trial", {bubbles: true, detail}));
  };

  // The places themselves are watched, not the window: a column may change its width without it.
  const watcher = new ResizeObserver((entries) => {
    for (const {target} of entries) {
      if (!target.clientWidth) continue;
      if (target.hpoParallel) target.hpoParallel.place();
      else if (target.data) Plotly.Plots.resize(target);
    }
  });

  // --- parallel coordinates ---

  // Texts of specifications are escaped for plotly, which reads a few HTML tags; here they become text nodes.
  const ENTITIES = {"&lt;": "<", "&gt;": ">", "&amp;": "&", "&#34;": '"', "&#39;": "'"};
  const plain = (text) => String(text).replace(/&(?:lt|gt|amp|#34|#39);/g, (found) => ENTITIES[found]);
  const element = (tag, attributes = {}, text = "") => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  };
  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const blend = (scale, at) => {
    const upper = Math.max(1, scale.findIndex(([stop]) => stop >= at));
    const [[from, one], [to, other]] = [scale[upper - 1], scale[upper]];
    const share = to > from ? (at - from) / (to - from) : 0;
    const mixed = channels(one).map((channel, i) => Math.round(channel + share * (channels(other)[i] - channel)));
    return `rgb(${mixed.join()})`;
  };
  const shown = (value) => String(Number(value.toPrecision(4)));

  const TOP = 46, BOTTOM = 14, SIDE = 44, ROOM = 88;  // pixels: labels, below, at the sides, between axes at least

  class Parallel {
    constructor(place, spec) {
      this.home = place;
      this.brushes = new Map();  // by label, so that they outlive an update
      this.withFailed = true;
      this.home.replaceChildren();
      this.home.classList.add("parallel");
      this.home.setAttribute("role", "group");
      this.canvas = element("canvas", {"aria-hidden": "true"});
      this.stage = element("div", {class: "parallel-stage"});
      this.axes = element("div", {class: "parallel-axes"});
      this.tip = element("div", {class: "parallel-tip", "aria-hidden": "true"});
      this.tip.hidden = true;
      this.stage.append(this.canvas, this.axes, this.tip);
      this.scroll = element("div", {class: "parallel-scroll"});
      this.scroll.append(this.stage);
      this.bar = element("div", {class: "parallel-bar"});
      this.status = element("span", {role: "status"});
      this.clear = element("button", {type: "button"}, "Clear brushes");
      this.clear.addEventListener("click", () => { this.brushes.clear(); this.brushed(); });
      this.toggle = element("input", {type: "checkbox"});
      this.toggle.checked = true;
      this.toggle.addEventListener("change", () => { this.withFailed = this.toggle.checked; this.brushed(); });
      this.failedLabel = element("label");
      this.failedLabel.append(this.toggle, " failed trials");
      this.bar.append(this.status, this.clear, this.failedLabel);
      this.home.append(this.scroll, this.bar);
      this.stage.addEventListener("pointermove", (event) => this.point(event));
      this.stage.addEventListener("pointerleave", () => this.leave());
      this.stage.addEventListener("click", (event) => {
        if (event.target.closest(".parallel-line")) return;  // that is for brushes
        this.point(event);  // a finger has pointed at nothing before
        if (this.pointed !== undefined) clicked(this.home, this.numbers[this.pointed], event);
      });
      this.theme = matchMedia("(prefers-color-scheme: dark)");
      this.retheme = () => this.paint();
      this.theme.addEventListener("change", this.retheme);
      this.take(spec);
    }

    end() {
      this.theme.removeEventListener("change", this.retheme);
      this.home.classList.remove("parallel");
      this.home.setAttribute("role", "img");
      this.home.replaceChildren();
      delete this.home.hpoParallel;
    }

    take(spec) {
      const trace = spec.data[0], meta = spec.layout.meta;
      this.dimensions = trace.dimensions.map((dimension, index) => ({...dimension, scale: meta.scales[index]}));
      this.numbers = trace.customdata.map(([number]) => number);
      this.texts = trace.customdata.map(([, text]) => plain(text));
      const {cmin, cmax, colorscale} = trace.line;
      this.colours = trace.line.color.map((at) => blend(colorscale, (at - cmin) / (cmax - cmin)));
      this.failed = trace.line.color.map((at) => at > 1);
      this.failedLabel.hidden = !this.failed.includes(true);
      this.build();
      this.brushed();
      this.place();
    }

    // One group of two sliders an axis: the ends of its brush.
    build() {
      this.axes.replaceChildren();
      this.dimensions.forEach((dimension, index) => {
        const name = plain(dimension.label);
        const group = element("div", {class: "parallel-axis", role: "group", "aria-label": name});
        const label = element("span", {class: "parallel-label", title: name}, name);
        const line = element("div", {class: "parallel-line"});
        const box = element("div", {class: "parallel-brush"});
        const ticks = element("div", {class: "parallel-ticks", "aria-hidden": "true"});
        (dimension.tickvals ?? []).forEach((value, at) => {
          const tick = element("span", {}, plain(dimension.ticktext[at]));
          tick.style.top = `${100 * (1 - this.share(dimension, value))}%`;
          ticks.append(tick);
        });
        const ends = ["lower", "upper"].map((word, end) => {
          const handle = element("div", {
            class: "parallel-handle", role: "slider", tabindex: "0", "aria-orientation": "vertical",
            "aria-label": `${name}, ${word} end of the brush`,
          });
          handle.addEventListener("keydown", (event) => this.key(event, index, end));
          return handle;
        });
        line.append(ticks, box, ...ends);
        line.addEventListener("pointerdown", (event) => this.drag(event, index));
        group.append(label, line);
        this.axes.append(group);
        Object.assign(dimension, {group, line, box, ends});
      });
    }

    share(dimension, value) {
      const [low, high] = dimension.range;
      return (value - low) / (high - low);
    }

    value(dimension, share) {
      const [low, high] = dimension.range;
      return low + Math.min(1, Math.max(0, share)) * (high - low);
    }

    place(paper) {
      const width = paper?.width ?? Math.max(this.home.clientWidth, 2 * SIDE + ROOM * (this.dimensions.length - 1));
      const height = Math.max(160, this.home.clientHeight - this.bar.offsetHeight - 16);
      if (!this.home.clientWidth) return;
      this.stage.style.width = `${width}px`;
      this.stage.style.height = `${height}px`;
      const density = Math.min(3, devicePixelRatio || 1);
      [this.canvas.width, this.canvas.height] = [width * density, height * density];
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
      this.density = density;
      const step = (width - 2 * SIDE) / Math.max(1, this.dimensions.length - 1);
      this.xs = this.dimensions.map((_, index) => SIDE + step * index);
      this.span = [TOP, height - BOTTOM];
      this.dimensions.forEach(({group, line}, index) => {
        group.style.left = `${this.xs[index]}px`;
        // At the ends, labels and ticks have the room beside the stage only: no axis makes it scroll.
        const end = index === 0 || index === this.dimensions.length - 1;
        group.classList.toggle("last", index === this.dimensions.length - 1);
        group.style.setProperty("--room", `${end ? Math.min(step - 6, 2 * SIDE) : step - 6}px`);
        line.style.top = `${TOP}px`;
        line.style.height = `${height - BOTTOM - TOP}px`;
      });
      const [top, bottom] = this.span;
      this.rows = this.numbers.map((_, row) =>
        this.dimensions.map((dimension) => bottom - this.share(dimension, dimension.values[row]) * (bottom - top)));
      this.paintNow();  // on paper there is no next frame
    }

    // --- brushes ---

    brushOf(dimension) { return this.brushes.get(dimension.label); }

    setBrush(dimension, low, high) {
      const all = low <= dimension.range[0] && high >= dimension.range[1];
      if (all) this.brushes.delete(dimension.label);
      else this.brushes.set(dimension.label, [low, high]);
      this.brushed();
    }

    drag(event, index) {
      if (event.button) return;
      const dimension = this.dimensions[index];
      const at = (moved) => {
        const {top, height} = dimension.line.getBoundingClientRect();
        return this.value(dimension, 1 - (moved.clientY - top) / height);
      };
      const start = at(event);
      const brush = this.brushOf(dimension) ?? dimension.range;
      const handle = dimension.ends.indexOf(event.target);
      let far = false;
      const move = (moved) => {
        const now = at(moved);
        far ||= Math.abs(moved.clientY - event.clientY) > 3;
        if (!far) return;
        const ends = handle < 0 ? [start, now] : handle ? [brush[0], now] : [now, brush[1]];
        this.setBrush(dimension, Math.min(...ends), Math.max(...ends));
      };
      const up = () => {
        removeEventListener("pointermove", move);
        removeEventListener("pointerup", up);
        removeEventListener("pointercancel", up);
        if (!far && handle < 0) this.setBrush(dimension, ...dimension.range);  // a click takes the brush away
      };
      addEventListener("pointermove", move);
      addEventListener("pointerup", up);
      addEventListener("pointercancel", up);
      if (handle < 0) event.preventDefault();
    }

    key(event, index, end) {
      const dimension = this.dimensions[index], [low, high] = dimension.range;
      const brush = [...(this.brushOf(dimension) ?? dimension.range)];
      // Between choices an end stands half way.
      const step = dimension.scale === "choice" ? 0.5 : (high - low) / 40;
      const steps = {ArrowUp: step, ArrowRight: step, ArrowDown: -step, ArrowLeft: -step,
        PageUp: 5 * step, PageDown: -5 * step}[event.key];
      if (steps) brush[end] += steps;
      else if (event.key === "Home") brush[end] = end ? brush[0] : low;
      else if (event.key === "End") brush[end] = end ? high : brush[1];
      else if (event.key === "Escape") brush.splice(0, 2, low, high);
      else return;
      event.preventDefault();
      brush[end] = end ? Math.min(high, Math.max(brush[0], brush[1])) : Math.max(low, Math.min(brush[0], brush[1]));
      this.setBrush(dimension, ...brush);
    }

    worded(dimension, value) {
      const near = (dimension.tickvals ?? []).findIndex((tick) => Math.abs(tick - value) < 0.5);
      if (dimension.scale === "choice") return near < 0 ? shown(value) : plain(dimension.ticktext[near]);
      return shown(dimension.scale === "log" ? 10 ** value : value);
    }

    brushed() {
      this.selected = this.numbers.map((_, row) => (this.withFailed || !this.failed[row])
        && this.dimensions.every((dimension) => {
          const brush = this.brushOf(dimension);
          const value = dimension.values[row];
          return !brush || (value >= brush[0] && value <= brush[1]);
        }));
      for (const dimension of this.dimensions) {
        const brush = this.brushOf(dimension) ?? dimension.range;
        dimension.box.hidden = !this.brushOf(dimension);
        const [low, high] = brush.map((value) => 100 * (1 - this.share(dimension, value)));
        dimension.box.style.top = `${high}%`;
        dimension.box.style.height = `${low - high}%`;
        dimension.ends.forEach((handle, end) => {
          handle.style.top = `${end ? high : low}%`;
          handle.setAttribute("aria-valuemin", shown(dimension.range[0]));
          handle.setAttribute("aria-valuemax", shown(dimension.range[1]));
          handle.setAttribute("aria-valuenow", shown(brush[end]));
          handle.setAttribute("aria-valuetext", this.worded(dimension, brush[end]));
        });
      }
      const kept = this.numbers.filter((_, row) => this.selected[row]);
      const best = this.numbers.findLastIndex((_, row) => this.selected[row] && !this.failed[row]);
      const any = this.brushes.size > 0;
      const of = `${kept.length.toLocaleString("en")} of ${this.numbers.length.toLocaleString("en")} trials`;
      this.status.textContent = any
        ? `${of} within the brushes${best < 0 ? "" : `; the best of them: ${this.texts[best]}`}`
        : "Drag along an axis to brush; by keyboard, move the ends of an axis with the arrow keys.";
      this.clear.hidden = !any;
      this.home.dispatchEvent(new CustomEvent("hpo:brush", {bubbles: true, detail: {trials: any ? kept : null}}));
      this.paint();
    }

    // --- the picture ---

    line(context, ys) {
      context.beginPath();
      ys.forEach((y, index) => (index ? context.lineTo(this.xs[index], y) : context.moveTo(this.xs[0], y)));
      context.stroke();
    }

    paint() {
      if (!this.rows || this.painting) return;
      this.painting = requestAnimationFrame(() => this.paintNow());
    }

    paintNow() {
      cancelAnimationFrame(this.painting);
      this.painting = 0;
      const context = this.canvas.getContext("2d");
      context.setTransform(this.density, 0, 0, this.density, 0, 0);
      context.clearRect(0, 0, this.canvas.width, this.canvas.height);
      context.lineJoin = "round";
      const count = this.selected.filter(Boolean).length;
      context.lineWidth = 1;
      context.globalAlpha = 0.12;
      context.strokeStyle = getComputedStyle(this.home).color;
      if (this.brushes.size) {
        this.rows.forEach((ys, row) => {
          if (!this.selected[row] && (this.withFailed || !this.failed[row])) this.line(context, ys);
        });
      }
      context.globalAlpha = Math.min(0.85, Math.max(0.06, 60 / count));
      context.lineWidth = count > 300 ? 1 : 1.5;
      this.rows.forEach((ys, row) => {
        if (!this.selected[row]) return;
        context.strokeStyle = this.colours[row];
        context.setLineDash(this.failed[row] ? [4, 3] : []);  // told apart without their colour too
        this.line(context, ys);
      });
      context.setLineDash([]);
      if (this.pointed !== undefined && this.rows[this.pointed]) {
        context.globalAlpha = 1;
        context.lineWidth = 3;
        context.strokeStyle = this.colours[this.pointed];
        this.line(context, this.rows[this.pointed]);
      }
    }

    point(event) {
      const {left, top} = this.stage.getBoundingClientRect();
      const [x, y] = [event.clientX - left, event.clientY - top];
      let after = this.xs.findIndex((each) => each >= x);
      if (after < 1) after = after ? this.xs.length - 1 : 1;
      let near = 7, found;
      if (this.xs.length > 1) {
        const share = (x - this.xs[after - 1]) / (this.xs[after] - this.xs[after - 1]);
        this.rows.forEach((ys, row) => {
          if (!this.selected[row]) return;
          const far = Math.abs(ys[after - 1] + share * (ys[after] - ys[after - 1]) - y);
          if (far <= near) [near, found] = [far, row];
        });
      }
      if (found !== this.pointed) { this.pointed = found; this.paint(); }
      this.home.classList.toggle("on-trial", found !== undefined);
      this.tip.hidden = found === undefined;
      if (found !== undefined) {
        this.tip.textContent = this.texts[found];
        const half = this.tip.offsetWidth / 2;
        this.tip.style.left = `${Math.min(this.stage.clientWidth - half, Math.max(half, x))}px`;
        this.tip.style.top = `${Math.max(0, y - 34)}px`;
      }
    }

    // A picture for paper: the lines, and the labels and ticks that are parts of the page otherwise.
    picture() {
      const copy = element("canvas"), {width, height} = this.canvas;
      Object.assign(copy, {width, height});
      const context = copy.getContext("2d"), [top, bottom] = this.span;
      context.fillStyle = "#fff";
      context.fillRect(0, 0, width, height);
      context.drawImage(this.canvas, 0, 0);
      context.setTransform(this.density, 0, 0, this.density, 0, 0);
      context.fillStyle = context.strokeStyle = "#1b1f24";
      this.dimensions.forEach((dimension, index) => {
        const x = this.xs[index], last = index === this.dimensions.length - 1;
        context.strokeRect(x, top, 0, bottom - top);
        context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
        context.textAlign = "center";
        context.fillText(plain(dimension.label), x, 26, parseFloat(dimension.group.style.getPropertyValue("--room")));
        context.textAlign = last ? "right" : "left";
        (dimension.tickvals ?? []).forEach((value, at) => context.fillText(
          plain(dimension.ticktext[at]), x + (last ? -6 : 6), 4 + bottom - this.share(dimension, value) * (bottom - top)));
      });
      return copy.toDataURL("image/png");
    }

    leave() {
      this.tip.hidden = true;
      this.home.classList.remove("on-trial");
      if (this.pointed !== undefined) { this.pointed = undefined; this.paint(); }
    }
  }

  // --- the way in ---

  const isParallel = (spec) => spec.data?.[0]?.type === "parcoords";
  const wordsOf = (spec) => (spec.data?.length ? undefined : spec.layout?.annotations?.[0]?.text);

  const nameOf = (place) => place.id.replace(/^(plot|figure)-/, "");
  const save = async (place) => {
    const {clientWidth: width, clientHeight: height} = place;
    const data = place.hpoParallel?.picture() ?? await Plotly.toImage(
      {data: place.data, layout: {...place.layout, paper_bgcolor: "#fff", font: {...place.layout.font, color: "#1b1f24"}}},
      {format: "png", width, height, scale: 2});
    element("a", {href: data, download: `${document.title.split(/ [·–] /)[0]}-${nameOf(place)}.png`}).click();
  };
  const offerPicture = (place, wanted) => {
    let button = place.nextElementSibling;
    if (!button?.matches(".png")) {
      button = element("button", {type: "button", class: "png", "aria-label": `PNG of figure ${nameOf(place)}`}, "PNG");
      button.addEventListener("click", () => save(place));
      place.after(button);
    }
    button.hidden = !wanted;
  };

  const draw = async (place, spec) => {
    const words = wordsOf(spec);
    offerPicture(place, words === undefined);
    if (place.hpoParallel) place.hpoParallel.end();
    place.classList.toggle("nothing", words !== undefined);
    if (words !== undefined) {
      if (place.data) Plotly.purge(place);
      watcher.unobserve(place);
      place.textContent = plain(words);
      return;
    }
    if (isParallel(spec)) {
      if (place.data) Plotly.purge(place);
      place.hpoParallel = new Parallel(place, spec);
    } else {
      place.replaceChildren();
      place.hpoSpec = spec;
      await Plotly.newPlot(place, ...completed(scaled(spec, place.dataset.scale)), config);
      const trialOf = ({points}) => points.find((point) => Number.isInteger(point.customdata));
      place.on("plotly_hover", (event) => place.classList.toggle("on-trial", trialOf(event) !== undefined));
      place.on("plotly_unhover", () => place.classList.remove("on-trial"));
      place.on("plotly_click", (event) => {
        const point = trialOf(event);
        if (point) clicked(place, point.customdata, event.event, point.data.meta);
      });
    }
    watcher.observe(place);
  };

  const update = async (place, spec) => {
    if (place.hpoParallel && isParallel(spec)) place.hpoParallel.take(spec);
    else if (place.data && !isParallel(spec) && wordsOf(spec) === undefined) {
      place.hpoSpec = spec;
      await Plotly.react(place, ...completed(scaled(spec, place.dataset.scale)), config);
    } else await draw(place, spec);
  };

  // Paper has another width than the screen, and no browser tells a figure of it in time.
  const resize = (place, paper) => {
    if (place.hpoParallel) place.hpoParallel.place(paper);
    else if (place.data) Plotly.relayout(place, paper ?? {width: null, height: null, autosize: true});
  };
  addEventListener("beforeprint", () => {
    for (const place of document.querySelectorAll(".plot")) {
      const wide = place.matches(".wide, .one");
      resize(place, {width: wide ? 660 : 320, height: wide ? 320 : 230});
    }
  });
  addEventListener("afterprint", () => {
    for (const place of document.querySelectorAll(".plot")) resize(place);
  });

  const rescale = (place, wanted) => {
    place.dataset.scale = wanted;
    return place.hpoSpec && update(place, place.hpoSpec);
  };

  const scaleSwitch = (specs, changed) => {
    const scales = specs.map(scale).filter(Boolean);
    if (!scales.length) return null;
    const label = document.createElement("label"), box = document.createElement("input");
    label.className = "scale small";
    box.type = "checkbox";
    box.checked = scales.includes("log");
    box.addEventListener("change", () => changed(box.checked ? "log" : "linear"));
    label.append(box, " logarithmic value axis");
    return label;
  };

  window.hpoFigures = {draw, update, scaleSwitch, rescale};
})();
