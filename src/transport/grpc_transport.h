// The Transport on gRPC: a byte-generic service, bulk as slices over the source's memory.
//
// Both ends are in one object. gRPC's threads only copy what was read into its place, and post;
// handlers and callbacks run in turns of the executor. Bytes are sent from where they lie and
// copied once, by the receiver.
//
// A peer must be of the same job: without TLS it says so itself, which guards against mistakes;
// with TLS its certificate says so, which guards against others. docs/operations.md has the files.
// On one machine the nodes listen on socket files, which other users cannot reach
// (base/wire_address.h). TCP without TLS has to be asked for.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "transport/transport.h"

namespace unreft {

class Log;
class TlsCertificates;

struct GrpcTlsOptions {
  bool enabled = false;
  // PEM. The certificate has the URI of the job (GrpcJobUri) among its alternative names. Changed
  // files are looked at again, and taken for connections made later if they are good.
  std::string ca_file;
  std::string cert_file;
  std::string key_file;
  Duration reload = std::chrono::seconds(10);  // whole seconds
};

struct GrpcTransportOptions {
  std::string job;
  std::string listen = "127.0.0.1:0";  // port 0: any free one; or unix:/PATH
  std::string advertise;               // the host of address(); empty: the one of `listen`
  GrpcTlsOptions tls;
  bool insecure = false;  // listens and connects by TCP without TLS, too

  size_t message_bytes_max = size_t{64} << 20;  // a request, a reply, the bytes of one Read
  size_t calls_in_flight_max = 4096;            // of this node's
  size_t reads_in_flight_max = 256;             // of this node's
  size_t calls_parked_max = 4096;               // of others: calls and reads not yet answered
  size_t calls_silent_max = 1024;               // of others: begun, without a message yet
  Duration silent_timeout = std::chrono::seconds(10);  // for the message of a call or read
  size_t channels_max = 1024;                   // addresses in use

  Duration channel_idle_max = std::chrono::minutes(5);
  Duration connect_timeout = std::chrono::seconds(5);
  // Between attempts to connect: at first, and once many were in vain.
  Duration reconnect_backoff_min = std::chrono::milliseconds(100);
  Duration reconnect_backoff_max = std::chrono::seconds(2);
  // A peer that is silent for both together is dead.
  Duration keepalive_time = std::chrono::seconds(5);
  Duration keepalive_timeout = std::chrono::seconds(5);
};

// Listens at once; handlers may be set in the same turn. Unavailable when the address is taken,
// InvalidArgument when the options contradict each other, PermissionDenied when others could listen
// in. `executor` outlives the transport, which
// is destroyed in a turn or when there are none any more; that waits for gRPC's threads to let go
// of it, not for any peer.
//
// With TLS by `certificates`, which whoever made them can reload and ask; without them by those of
// `options`.
absl::StatusOr<std::unique_ptr<Transport>> NewGrpcTransport(
    Executor& executor, const GrpcTransportOptions& options,
    std::shared_ptr<TlsCertificates> certificates = nullptr);

// Those of a node, looked at first (TlsPair::Read). `executor` and `log`, which may be null,
// outlive them.
absl::StatusOr<std::shared_ptr<TlsCertificates>> NewNodeCertificates(const std::string& job,
                                                                     const GrpcTlsOptions& tls,
                                                                     Executor& executor, Log* log);

// gRPC writes lines of its own to stderr, which statuses say better. For main(): drops them, unless
// the environment has GRPC_VERBOSITY. Process-wide.
void SilenceGrpcLog();

// For main(), before there are threads: malloc keeps the memory that bulk was received into, up to
// 64 MiB in each of four arenas, for what is received next. By default it gives it back after each
// message, and the kernel clears every page anew: half of all CPU time of a Read. Process-wide.
// False where malloc is another one, which was left as it is.
bool KeepReceiveMemory();

// "unreft://job/<job>"
std::string GrpcJobUri(const std::string& job);

}  // namespace unreft
