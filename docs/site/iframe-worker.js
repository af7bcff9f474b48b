// A page that was opened from a disk may start no worker. There the search runs in a
// hidden frame, which speaks to the page as a worker would.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = `<script src="${url}"><\/script>`;
      this.frame.onload = () => {
        const inner = this.frame.contentWindow;
        inner.postMessage = (data) =>
          this.dispatchEvent(new MessageEvent("message", { data }));
        this.inner = inner;
        this.waiting.forEach((data) => this.send(data));
      };
      const append = () => document.body.append(this.frame);
      if (document.body) append();
      else addEventListener("DOMContentLoaded", append);
    }
    send(data) {
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }
    postMessage(data) {
      if (this.inner) this.send(data);
      else this.waiting.push(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
