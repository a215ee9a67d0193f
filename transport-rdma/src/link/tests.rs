//! The link over a virtual network.

/// A deliberate error in what the receiving direction says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Planted {
    /// None.
    #[default]
    Nothing,
    /// A request to resend acknowledges the missing message too.
    EarlyAcknowledgement,
    /// A slot that is not posted again yet counts as a credit.
    ExtraCredit,
}
