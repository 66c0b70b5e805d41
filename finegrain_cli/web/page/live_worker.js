// Shares one live stream among the tabs of a browser.

import { LiveStream } from "./live.js";

const stream = new LiveStream();

addEventListener("connect", ({ ports: [port] }) => {
  const reader = (message) => port.postMessage(message);
  port.onmessage = ({ data }) => {
    if (data.token === null) stream.remove(reader);
    else stream.add(data.token, reader);
  };
});
