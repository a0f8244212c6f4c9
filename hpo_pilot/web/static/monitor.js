// The monitor's script: keeps numbers and figures of a page up to date, and copies texts. Every page works without it,
// but for figures. It sets data-drawn="true" on the document once all figures that are to be seen are drawn.
"use strict";
(() => {
  const root = document.documentElement, body = document.body;
  const FIGURE_SECONDS = 4;  // between two looks at a figure's data

  // --- copying ---

  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button.copy");
    if (!button) return;
    const source = button.parentElement.querySelector("pre"), label = button.firstChild;
    try {
      await navigator.clipboard.writeText(source.textContent);
      label.data = "Copied ";
    } catch {
      // No clipboard here: select the text, so that the user's own keys can copy it.
      getSelection().selectAllChildren(source);
      label.data = "Selected ";
    }
    setTimeout(() => { label.data = "Copy "; }, 1500);
  });
  const showCopies = (within) => { for (const button of within.querySelectorAll("button.copy")) button.hidden = false; };
  showCopies(document);

  // A link to a log opens it.
  const openTarget = () => {
    // Ids of logs need no decoding, which a hand-made address would break the script by.
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) { target.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  // A part that another page has, and that takes time.
  for (const place of document.querySelectorAll("[data-from]")) {
    fetch(place.dataset.from).then(async (answer) => {
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      place.replaceChildren(...page.getElementById(place.id).childNodes);
    }).catch((error) => console.warn(`${place.id}: ${error.message}`));  // the link to that page stays
  }

  // --- figures ---

  const base = body.dataset.figures;
  const kinds = base ? [...document.querySelectorAll("[data-kind]")] : [];
  const waiting = new Set(kinds.map((section) => section.dataset.kind));
  const states = new Map();  // by kind: {tag, busy, again, seen}

  const say = (section, text) => {
    const note = document.createElement("p");
    note.className = "loading nothing soft small";
    note.textContent = text;
    section.querySelector(".drawn").replaceChildren(note);
  };

  const made = (figure, alone) => {
    const holder = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const place = document.createElement("div");
    holder.dataset.figure = figure.key;
    caption.id = `caption-${figure.key}`;
    if (!alone) {
      const title = document.createElement("h4");
      title.textContent = figure.title;
      caption.append(title);
    }
    const note = document.createElement("span");
    note.className = "note";
    caption.append(note);
    place.className = alone ? "plot one" : "plot";
    place.id = `plot-${figure.key}`;
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", figure.description);
    holder.append(caption, place);
    return holder;
  };

  // One switch for all figures of a kind, once one of them can be switched.
  const offerScale = (section, figures) => {
    if (section.querySelector(":scope > .scale")) return;
    const label = hpoFigures.scaleSwitch(figures.map((figure) => figure.spec), (scale) => {
      section.dataset.scale = scale;
      for (const place of section.querySelectorAll(".plot")) hpoFigures.rescale(place, scale);
    });
    if (label) section.querySelector(".drawn").before(label);
  };

  const show = async (section, figures) => {
    const drawn = section.querySelector(".drawn");
    offerScale(section, figures);
    if (!figures.length) {
      if (!drawn.querySelector("figure")) say(section, "There is nothing to draw.");
      return;
    }
    const alone = figures.length === 1;
    const old = new Map([...drawn.querySelectorAll("figure")].map((holder) => [holder.dataset.figure, holder]));
    const same = old.size === figures.length && figures.every((figure) => old.has(figure.key));
    if (!same) {
      drawn.className = alone ? "drawn" : "drawn group";
      drawn.replaceChildren(...figures.map((figure) => made(figure, alone)));
    }
    for (const figure of figures) {
      const holder = [...drawn.children].find((each) => each.dataset.figure === figure.key);
      const place = holder.querySelector(".plot");
      if (section.dataset.scale) place.dataset.scale = section.dataset.scale;
      place.setAttribute("aria-label", figure.description);
      holder.querySelector(".note").textContent = figure.note;
      await (same ? hpoFigures.update(place, figure.spec) : hpoFigures.draw(place, figure.spec));
      // Let the page be read and scrolled while figures come.
      await new Promise((next) => setTimeout(next, 0));
    }
  };

  const finish = (key) => {
    waiting.delete(key);
    if (!waiting.size) root.dataset.drawn = "true";
  };

  // Users choose the parameters of some figures; the page's address keeps the choice.
  for (const section of kinds) {
    const choices = [...section.querySelectorAll("select[data-axis]")];
    const take = () => {
      const chosen = new Set(choices.map((choice) => choice.value).filter(Boolean));
      const query = new URLSearchParams(choices.map((choice) => [choice.dataset.axis, choice.value]));
      section.dataset.axes = chosen.size > 1 ? `?${query}` : "";
    };
    for (const choice of choices) {
      choice.value = new URLSearchParams(location.search).get(choice.id) ?? "";
      choice.selectedIndex = Math.max(0, choice.selectedIndex);  // the address may have a name that is none
      choice.addEventListener("change", () => {
        const address = new URL(location.href);
        address.searchParams.set(choice.id, choice.value);
        if (!choice.value) address.searchParams.delete(choice.id);
        history.replaceState(null, "", address);
        take();
        Object.assign(states.get(section.dataset.kind) ?? {}, {tag: null, busy: false});
        load(section);
      });
    }
    take();
  }

  const load = async (section) => {
    const key = section.dataset.kind, {axes = ""} = section.dataset;
    const state = states.get(key) ?? {};
    states.set(key, state);
    state.stale = false;
    if (state.busy) { state.again = true; return; }
    state.busy = true;
    try {
      const answer = await fetch(base + encodeURIComponent(key) + axes, {
        headers: state.tag ? {"If-None-Match": state.tag} : {}, cache: "no-store",
      });
      if (answer.status === 401) return signedOut();
      if (answer.status !== 304 && axes === (section.dataset.axes ?? "")) {
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        state.tag = answer.headers.get("ETag");
        await show(section, (await answer.json()).figures);
      }
    } catch (error) {
      console.warn(`figure ${key}: ${error.message}`);
      if (!section.querySelector("figure")) say(section, "It cannot be drawn at the moment.");
    } finally {
      section.setAttribute("aria-busy", "false");
      finish(key);
      setTimeout(() => {
        state.busy = false;
        if (state.again) { state.again = false; load(section); }
      }, FIGURE_SECONDS * 1000);
    }
  };

  // Those in view, and a little beyond, come first, two at a time, for one may take seconds; those far below when one
  // scrolls there, or when there is nothing else to do.
  const queue = [];
  let loading = 0;
  const next = async () => {
    if (loading >= 2) return;
    loading += 1;
    while (queue.length) await load(queue.shift());
    loading -= 1;
  };
  const want = (section, first = false) => {
    const at = queue.indexOf(section);
    if (at >= 0) queue.splice(at, 1);
    if (first) queue.unshift(section); else queue.push(section);
    next();
  };
  if (kinds.length) {
    const nearby = new IntersectionObserver((entries) => {
      for (const {target, isIntersecting} of entries) {
        const state = states.get(target.dataset.kind);
        if (isIntersecting && (!state || state.stale)) want(target, true);
      }
    }, {rootMargin: "400px"});
    for (const section of kinds) nearby.observe(section);
    addEventListener("load", () => setTimeout(() => {
      for (const section of kinds) if (!states.has(section.dataset.kind) && !queue.includes(section)) want(section);
    }, 300));
  }
  // Paper shows all figures: those that were not drawn yet, or have newer data, come first.
  addEventListener("keydown", async (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key !== "p") return;
    const missing = kinds.filter(({dataset: {kind}}) => waiting.has(kind) || states.get(kind).stale);
    if (!missing.length) return;
    event.preventDefault();
    await Promise.all(missing.map(load));
    while (waiting.size) await new Promise((next) => setTimeout(next, 50));  // those that were under way
    print();
  });
  const inView = (section) => {
    const {top, bottom} = section.getBoundingClientRect();
    return bottom > -400 && top < innerHeight + 400;
  };
  const refreshFigures = () => {
    for (const section of kinds) {
      const state = states.get(section.dataset.kind);
      if (!state) continue;
      if (inView(section)) want(section); else state.stale = true;
    }
  };

  document.addEventListener("hpo:trial", ({detail: {trial, search, apart}}) => {
    const of = search === undefined ? base.replace(/\/figures\/$/, "") : `/searches/${encodeURIComponent(search)}`;
    const address = `${of}/trials/${trial}`;
    if (apart) open(address, "_blank", "noopener"); else location.assign(address);
  });

  // --- news ---

  const connection = document.getElementById("connection");
  const tell = (text) => {
    if (connection.textContent !== text) connection.textContent = text;
    connection.hidden = !text;
  };
  let over = false;
  const signedOut = () => {
    over = true;
    source?.close();
    connection.textContent = "You are signed out. ";
    const link = document.createElement("a");
    link.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
    link.textContent = "Sign in";
    connection.append(link);
    connection.hidden = false;
  };

  const apply = (html) => {
    for (const [id, text] of Object.entries(html)) {
      const place = document.getElementById(id);
      if (!place) continue;
      if (place.dataset.said === text) { delete place.dataset.late; continue; }
      // What somebody reads with the keyboard, or has selected, stays until they have left it.
      const selection = getSelection();
      const held = place.contains(document.activeElement)
        || (!selection.isCollapsed && place.contains(selection.anchorNode));
      if (held) { place.dataset.late = text; continue; }
      const open = [...place.querySelectorAll("details")].map((details) => details.open);
      place.innerHTML = text;
      place.dataset.said = text;
      delete place.dataset.late;
      place.querySelectorAll("details").forEach((details, index) => { details.open = open[index] ?? details.open; });
      showCopies(place);
    }
  };
  const applyLate = () => setTimeout(() => {
    const late = [...document.querySelectorAll("[data-late]")];
    apply(Object.fromEntries(late.map((place) => [place.id, place.dataset.late])));
  }, 0);
  document.addEventListener("focusout", applyLate);
  document.addEventListener("selectionchange", applyLate);  // a click beside the selection may move no focus

  const refreshActions = async () => {
    const place = document.getElementById("actions");
    if (!place || place.contains(document.activeElement)) return;
    const answer = await fetch(body.dataset.actions, {cache: "no-store"});
    if (answer.ok) place.innerHTML = await answer.text();
  };

  let source = null, figures = null, state = body.dataset.state;
  const take = ({html, figures: tag, state: now}) => {
    tell("");
    apply(html);
    root.dataset.live = String(Number(root.dataset.live ?? 0) + 1);
    if (tag && figures !== null && tag !== figures) refreshFigures();
    figures = tag;
    if (body.dataset.total) {
      const more = document.getElementById("more");
      if (more) more.hidden = now === body.dataset.total;
    } else if (now !== state) {
      state = now;
      // Parts of a page that are there while the state has their word.
      for (const part of document.querySelectorAll("[data-when]")) part.hidden = !now.split(" ").includes(part.dataset.when);
      refreshActions().catch((error) => console.warn(`actions: ${error.message}`));
    }
  };

  const connect = () => {
    if (over || source || document.hidden || !body.dataset.live) return;
    source = new EventSource(body.dataset.live);
    source.onmessage = (event) => take(JSON.parse(event.data));
    source.addEventListener("ended", signedOut);
    source.addEventListener("away", () => tell("The store is out of reach; the page goes on by itself."));
    source.onerror = async () => {
      tell("No connection; the page goes on by itself when there is one.");
      if (source.readyState !== EventSource.CLOSED) return;  // the browser tries again
      source = null;
      try {
        const answer = await fetch(location.href, {method: "HEAD", redirect: "manual", headers: {Accept: "application/json"}});
        if (answer.status === 401) return signedOut();
      } catch { /* the server is away: try again below */ }
      setTimeout(connect, 3000);
    };
  };
  const disconnect = () => { source?.close(); source = null; };
  // A browser has few connections for a server: pages that nobody sees give theirs back.
  document.addEventListener("visibilitychange", () => { if (document.hidden) disconnect(); else connect(); });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", connect);
  connect();
})();
