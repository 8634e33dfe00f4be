// Charges cards. The bank is made up: a card's token says how it behaves.

import { context, failed, handler, log, publish } from './sprag/index.js';
import * as config from './sprag/config.js';
import * as state from './sprag/state.js';

export const { describe, handle } = handler({
  PaymentRequested(message) {
    const { order, cents, card, country } = message.json();
    const answer = charge(card, cents);
    if (!answer.accepted) {
      publish({ entity: 'orders', eventType: 'PaymentDeclined', json: { order, why: answer.why } });
      return;
    }
    state.setJson(`charge/${order}`, { cents, currency: config.get('currency') });
    publish({ entity: 'shipping', eventType: 'ShipmentRequested', json: { order, country } });
  },
});

function charge(card, cents) {
  // This bank answers at the third attempt; the endpoint's retry policy gets there by itself.
  if (card === 'tok_slow' && context.attempt() < 3) {
    throw failed('bank-timeout', `the bank did not answer attempt ${context.attempt()}`);
  }
  if (card === 'tok_declined') return { accepted: false, why: 'the bank declined the card' };
  const limit = Number(config.get('limit_cents'));
  if (cents > limit) {
    log.warn(`${cents} cents are over the limit of ${limit}`);
    return { accepted: false, why: 'over the limit' };
  }
  return { accepted: true };
}
