// EtcdKv: Kv over etcd's v3 API - real etcd, or the embedded server.
//
// Calls go to any of the members that are connected. A read (a Txn that writes in neither branch)
// and a KeepAlive are tried again within their deadline. A Txn that writes, a grant and a
// revocation are not: once they may have been applied, their outcome is unknown and says so.
//
// A watch has a stream of its own and ends with it. Before, the store is asked which one it is and
// where (WatchProgress).
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <string>

#include "base/executor.h"
#include "meta/kv.h"
#include "meta/meta_tls.h"

namespace unreft {
class TlsCertificates;
}

namespace unreft::meta {

struct EtcdKvOptions {
  // "HOST:PORT,HOST:PORT,...", names or IP addresses; of a name all its addresses are used. Or
  // "unix:/PATH".
  std::string endpoints;
  Duration call_timeout = std::chrono::seconds(1);  // well below the ttl of leases
  Duration retry_delay_min = std::chrono::milliseconds(50);
  Duration retry_delay_max = std::chrono::seconds(1);
  Duration reconnect_delay_max = std::chrono::milliseconds(500);  // of a connection, gRPC's
  uint64_t reply_bytes_max = uint64_t{64} << 20;
  size_t calls_max = 1024;  // under way; beyond: ResourceExhausted
  // That nobody writes and this client may read: where the store is, is asked by it.
  std::string unwritten_key = std::string(1, '\0');
  MetaTlsOptions tls;
  bool insecure = false;  // connects by TCP without TLS, too
};

class EtcdKv final : public Kv {
 public:
  // Does not wait for a connection. InvalidArgument: the endpoints, or what is wrong with a TLS
  // file; PermissionDenied: others could listen in, or be the store.
  // `executor` outlives the Kv. With TLS by `certificates`, which whoever made them can reload and
  // ask; without them by those of `options`.
  static absl::StatusOr<std::unique_ptr<EtcdKv>> Create(
      EtcdKvOptions options, Executor& executor,
      std::shared_ptr<TlsCertificates> certificates = nullptr);
  // In a turn, or when the executor runs none. Cancels what is under way and waits for gRPC to let
  // go of it, some milliseconds.
  ~EtcdKv() override;

  void Commit(Txn txn, TxnDone done) override;
  void GrantLease(Duration ttl, LeaseDone done) override;
  void KeepAlive(LeaseId lease, Done done) override;
  void RevokeLease(LeaseId lease, Done done) override;
  WatchId Watch(KeyRange range, Revision start, OnEvents on_events, Done on_end) override;
  void CancelWatch(WatchId watch) override;

  // Of several members those that are not connected now, and why.
  std::map<std::string, std::string> MembersAway() const;

  // Bytes that the database takes at the member that answers. Unimplemented: the embedded server
  // does not say.
  void AskSize(absl::AnyInvocable<void(absl::StatusOr<uint64_t>)> done);

 private:
  class Impl;
  explicit EtcdKv(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace unreft::meta
