// RefusalLog: a transport that warns when a node refuses another by its certificate or its job.
//
// A decorator; it owns what it decorates. Nothing that is retried cures a wrong certificate, so
// whoever reads the log must find it there; at most one line per address in `interval`.
#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "transport/transport.h"

namespace unreft {

class RefusalLog final : public Transport {
 public:
  RefusalLog(std::unique_ptr<Transport> inner, Executor& executor, Log& log,
             Duration interval = std::chrono::seconds(30))
      : executor_(executor), log_(log), interval_(interval), inner_(std::move(inner)) {}

  const std::string& address() const override { return inner_->address(); }
  void Call(const std::string& address, const std::string& method, std::string request,
            Duration timeout, CallDone done) override;
  TransferId Read(const std::string& address, std::string request, std::span<std::byte> into,
                  Duration timeout, ReadDone done) override;
  void Cancel(TransferId transfer) override { inner_->Cancel(transfer); }
  void ReconnectNow(const std::string& address) override { inner_->ReconnectNow(address); }
  void Serve(const std::string& method, CallHandler handler) override {
    inner_->Serve(method, std::move(handler));
  }
  void ServeReads(ReadHandler handler) override { inner_->ServeReads(std::move(handler)); }

 private:
  CallDone Watched(const std::string& address, CallDone done);

  Executor& executor_;
  Log& log_;
  const Duration interval_;
  const std::unique_ptr<Transport> inner_;  // no callback runs after it
};

}  // namespace unreft
