/* The search of pages that are opened from a folder. A browser starts no worker for file:// addresses, so the search's
   worker runs in a hidden frame. The theme finds this class by its name, and its own copy is on another server. */
(() => {
  if (location.protocol !== "file:") return;

  class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.scope = frame.contentWindow;
      this.loaded = new Promise((resolve) => {
        const page = this.scope.document;
        this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = page.createElement("script");
        script.onload = resolve;
        script.onerror = () => this.dispatchEvent(new Event("error"));
        script.src = new URL(address, location.href);
        page.body.appendChild(script);
      });
    }

    async postMessage(data) {
      await this.loaded;
      this.scope.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.scope.frameElement.remove();
    }
  }

  window.Worker = window.IFrameWorker = IFrameWorker;
})();
