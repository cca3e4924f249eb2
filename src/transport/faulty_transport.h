// FaultyTransport: a transport that fails or delays what its rules name.
//
// A decorator for tests and failure injection; it owns what it decorates, and without rules it
// changes nothing.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace unreft {

struct TransportFault {
  enum class Kind {
    kRefuse,      // nothing is sent; fails with `status`
    kLoseAnswer,  // carried out, then fails with `status`
    kDelay,       // sent `delay` later, or never when the caller's timeout ends before
  };

  Kind kind = Kind::kRefuse;
  std::string method;   // empty: reads
  std::string address;  // empty: any
  uint64_t first = 1;   // of those that match, from this one on, counted from 1,
  uint64_t count = 1;   // so many
  absl::Status status = absl::UnavailableError("injected");
  Duration delay{0};
};

class FaultyTransport final : public Transport {
 public:
  // `executor` is the one of `inner`.
  FaultyTransport(Executor& executor, std::unique_ptr<Transport> inner);
  ~FaultyTransport() override;

  // Counts what matches from now on. Where several faults strike, the one added first does.
  void Add(TransportFault fault);
  void Clear();
  uint64_t faults_struck() const { return faults_struck_; }

  const std::string& address() const override { return inner_->address(); }
  void Call(const std::string& address, const std::string& method, std::string request,
            Duration timeout, CallDone done) override;
  TransferId Read(const std::string& address, std::string request, std::span<std::byte> into,
                  Duration timeout, ReadDone done) override;
  void Cancel(TransferId transfer) override;
  void ReconnectNow(const std::string& address) override { inner_->ReconnectNow(address); }
  void Serve(const std::string& method, CallHandler handler) override;
  void ServeReads(ReadHandler handler) override;

 private:
  struct Rule {
    TransportFault fault;
    uint64_t seen = 0;
  };
  // A read that has not ended. Until it is sent `inner` is none.
  struct PendingRead {
    TransferId inner = TransferId::kNone;
    ReadDone done;
  };

  const TransportFault* Strike(const std::string& method, const std::string& address);
  void Post(Task task);
  void After(Duration delay, Task task);
  // Runs `start` with what is left of the timeout after the fault's delay, or `late` in its place.
  void Delay(Duration delay, Duration timeout, absl::AnyInvocable<void(Duration left)> start,
             Task late);
  void Send(TransferId id, const std::string& address, std::string request,
            std::span<std::byte> into, Duration timeout, absl::Status lose);
  void EndRead(TransferId id, absl::StatusOr<std::string> header);

  Executor& executor_;
  std::vector<Rule> rules_;
  uint64_t faults_struck_ = 0;
  uint64_t last_id_ = 0;
  std::map<TransferId, PendingRead> reads_;
  const std::shared_ptr<FaultyTransport*> self_;  // dies with this, in a turn
  const std::unique_ptr<Transport> inner_;
};

}  // namespace unreft
