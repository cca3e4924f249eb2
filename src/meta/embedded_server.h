// EmbeddedServer: the etcd v3 API, as far as the meta store is used, served from a StoreEngine.
//
// gRPC's threads only post to the engine's executor and hand its answers back. Constructed and
// destroyed in turns of that executor, or when it runs none.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "base/executor.h"
#include "meta/meta_tls.h"
#include "meta/store_engine.h"

namespace unreft {
class TlsCertificates;
}

namespace unreft::meta {

struct EmbeddedServerOptions {
  std::string listen = "127.0.0.1:2379";           // port 0: a free one; or unix:/PATH
  uint64_t message_bytes_max = uint64_t{2} << 20;  // of a request, as etcd's
  // Streams of watches and keep-alives that have said something, and watches. What others need is
  // taken from the client that has the most.
  size_t streams_max = 10'000;
  size_t watches_max = 10'000;
  size_t calls_silent_max = 1024;  // streams that have begun, without a message yet
  Duration silent_timeout = std::chrono::seconds(10);    // for the first message of a stream
  Duration handshake_timeout = std::chrono::seconds(5);  // of a connection
  // Answers that wait for a slow reader of a watch; beyond, its stream is ended.
  uint64_t stream_bytes_max = uint64_t{64} << 20;
  MetaTlsOptions tls;
  bool insecure = false;  // listens by TCP without TLS, too
};

class EmbeddedServer {
 public:
  // `engine` has been started; both outlive the server. Unavailable: the address is taken;
  // PermissionDenied: others could use the store.
  // With TLS by `certificates`, which whoever made them can reload; without them by those of
  // `options`.
  static absl::StatusOr<std::unique_ptr<EmbeddedServer>> Start(
      EmbeddedServerOptions options, Executor& executor, StoreEngine& engine,
      std::shared_ptr<TlsCertificates> certificates = nullptr);
  // Ends every call, answered or not, and waits until gRPC has let go of it.
  ~EmbeddedServer();

  // Where it listens: "127.0.0.1:40123", "unix:/run/meta.sock".
  const std::string& address() const;

 private:
  class Impl;
  explicit EmbeddedServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace unreft::meta
