// LocalTransport: the transport of a job of one node, whose daemon calls nobody but itself.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/executor.h"
#include "base/lifetime.h"
#include "transport/transport.h"

namespace unreft {

// Nothing is lost on the way. Bytes of a read are copied in one turn.
class LocalTransport final : public Transport {
 public:
  // `executor` outlives it.
  explicit LocalTransport(Executor& executor) : executor_(executor) {}
  ~LocalTransport() override;

  const std::string& address() const override { return address_; }
  void Call(const std::string& address, const std::string& method, std::string request,
            Duration timeout, CallDone done) override;
  TransferId Read(const std::string& address, std::string request, std::span<std::byte> into,
                  Duration timeout, ReadDone done) override;
  void Cancel(TransferId transfer) override;
  void Serve(const std::string& method, CallHandler handler) override;
  void ServeReads(ReadHandler handler) override;

 private:
  // Until its end was told.
  struct Asked {
    std::string name;  // for messages: address and method
    std::span<std::byte> into;
    CallDone done;
    TimerId deadline = TimerId::kNone;
  };

  uint64_t Begin(const std::string& address, const std::string& method, std::span<std::byte> into,
                 Duration timeout, CallDone done);
  // In a turn of its own, if it has not ended yet.
  void EndSoon(uint64_t asked, absl::StatusOr<std::string> reply);
  void End(uint64_t asked, absl::StatusOr<std::string> reply);
  void TakeBytes(uint64_t asked, absl::StatusOr<ReadSource> source);

  Executor& executor_;
  const std::string address_ = "this node";
  std::map<std::string, std::shared_ptr<CallHandler>> calls_;  // shared with the call under way
  std::shared_ptr<ReadHandler> reads_;
  std::map<uint64_t, Asked> asked_;
  uint64_t last_ = 0;
  Lifetime lifetime_;
};

}  // namespace unreft
